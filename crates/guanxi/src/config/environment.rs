//! Environment variables, which mirror the paths of the settings.

use std::ffi::OsString;

use toml::{Table, Value};

use super::wrong::wrong;
use super::{Config, ConfigError, without_passwords};

/// An environment variable of a setting is this and the setting's path: GUANXI_HTTP_LISTEN.
const ENVIRONMENT_PREFIX: &str = "GUANXI_";
/// Variables that belong to the client commands.
const CLIENT_VARIABLES: [&str; 3] = ["GUANXI_SERVER", "GUANXI_KEY", "GUANXI_FROM_PASSWORD"];
/// Tables, which no variable can hold.
const KINDS: &str = "kinds";

/// Lays what the environment says over the file's settings; returns the variables that no setting
/// understands.
pub(super) fn lay_over(
    table: &mut Table,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<String>, ConfigError> {
    let known = known_settings()?;
    let mut unknown_variables = Vec::new();
    for (name, value) in environment {
        let name = name.to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(ENVIRONMENT_PREFIX) else {
            continue;
        };
        if CLIENT_VARIABLES.contains(&name.as_str()) {
            continue;
        }
        // What it holds is not shown: it may be a password.
        let text = value.into_string().map_err(|_| ConfigError::Wrong {
            origin: name.clone(),
            message: "its value is not UTF-8 text".to_owned(),
        })?;
        match known.iter().find(|setting| setting.variable == rest) {
            Some(setting) => setting.set(table, &name, text)?,
            None => unknown_variables.push(name),
        }
    }
    Ok(unknown_variables)
}

/// A setting that the environment may give: its path and what kind of value it has.
pub(super) struct Setting {
    pub variable: String,
    path: Vec<String>,
    example: Value,
}

impl Setting {
    fn set(&self, table: &mut Table, name: &str, text: String) -> Result<(), ConfigError> {
        let value = match &self.example {
            Value::Integer(_) => text.parse().ok().map(Value::Integer),
            Value::Boolean(_) => text.parse().ok().map(Value::Boolean),
            Value::Array(_) => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Some(Value::Array(items.map(|item| Value::String(item.to_owned())).collect()))
            }
            _ => Some(Value::String(text.clone())),
        };
        let value = value.ok_or_else(|| ConfigError::Wrong {
            origin: name.to_owned(),
            message: without_passwords(&format!("'{text}' is not a {}", self.example.type_str())),
        })?;
        let Some((last, sections)) = self.path.split_last() else {
            return Ok(());
        };
        let mut table = table;
        for section in sections {
            let entry = table.entry(section.clone()).or_insert_with(|| Value::Table(Table::new()));
            let Value::Table(inner) = entry else {
                return Ok(());
            };
            table = inner;
        }
        table.insert(last.clone(), value);
        Ok(())
    }
}

/// Every setting with one value or a list of words, which commas divide; kinds are for the file
/// alone.
pub(super) fn known_settings() -> Result<Vec<Setting>, ConfigError> {
    let defaults =
        Table::try_from(Config::default()).map_err(|error| wrong("the defaults", &error))?;
    let mut known = Vec::new();
    gather(&defaults, &mut Vec::new(), &mut known);
    Ok(known)
}

/// Whether a setting has this name within its section, so that nothing else can be told by it.
pub(super) fn knows(name: &str) -> bool {
    let named = |setting: &Setting| setting.path.last().is_some_and(|last| last == name);
    known_settings().is_ok_and(|known| known.iter().any(named))
}

pub(super) fn gather(table: &Table, path: &mut Vec<String>, known: &mut Vec<Setting>) {
    for (name, value) in table {
        path.push(name.clone());
        match value {
            Value::Table(inner) => gather(inner, path, known),
            Value::Array(_) if path.as_slice() == [KINDS] => {}
            example => known.push(Setting {
                variable: path.join("_").to_uppercase(),
                path: path.clone(),
                example: example.clone(),
            }),
        }
        path.pop();
    }
}
