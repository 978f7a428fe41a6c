//! What is wrong with the settings, told without showing what they hold: some of them have passwords,
//! and those may stand where nobody expects them.

use std::path::PathBuf;

use super::environment;
use super::without_passwords;

/// What is wrong with the settings, in a sentence that says where.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {source}; check the path given with --config")]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{origin}: {message}")]
    Wrong { origin: String, message: String },
}

/// What is wrong with a file's text, and where. The line itself is not shown, as the parser would
/// do: it may hold a password, or half of one.
pub(super) fn wrong_text(origin: &str, text: &str, error: &toml::de::Error) -> ConfigError {
    let message = without_passwords(error.message());
    let Some(span) = error.span() else {
        return wrong(origin, &message);
    };
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count();
    let setting = text.lines().nth(line).and_then(|line| line.split_once('='));
    let setting = setting.map(|(name, _)| name.trim()).filter(|name| environment::knows(name));
    let place = setting.map_or(String::new(), |name| format!(" ({name})"));
    wrong(origin, &format!("line {}{place}: {message}", line + 1))
}

pub(super) fn wrong(origin: &str, error: &dyn std::fmt::Display) -> ConfigError {
    ConfigError::Wrong {
        origin: origin.to_owned(),
        message: without_passwords(error.to_string().trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{load, parse};

    /// Wherever a password is wrongly written, and whatever it holds, an error does not repeat it.
    #[test]
    fn no_error_shows_a_password() {
        let passwords = [
            "hush",
            "hu\"sh",
            "hu'sh",
            "hu`sh",
            "hu@sh",
            "hu sh",
            "hu\nsh",
            "hu\nsh = x",
            "#hu:/?",
        ];
        let settings = [
            ("store", "url"),
            ("cache", "redis"),
            ("cache", "filter_redis"),
            ("cache", "tally_redis"),
            ("cache", "list_redis"),
            ("standby", "follow"),
            ("http", "workers"),
            ("http", "listen"),
            ("http", "names"),
            ("telemetry", "level"),
            ("log", "topic"),
            ("log", "source"),
        ];
        let shows = |error: &str| error.contains("hu") || error.contains("sh@");
        for password in passwords {
            for scheme in ["mysql", "redis", "http"] {
                let url = format!("{scheme}://user:{password}@host:1/base");
                for (section, setting) in settings {
                    let quoted = format!("{url:?}");
                    for value in [
                        &url,
                        &format!("\"{url}\""),
                        &format!("'{url}'"),
                        &format!("{quoted} x"),
                        &format!("\"{url}"),
                        &format!("\"\"\"{url}"),
                        &format!("[{quoted}"),
                        &format!("[{quoted}]"),
                        &format!("{{ x = {quoted} }}"),
                        &quoted,
                    ] {
                        for mode in ["embedded", "cluster"] {
                            let text =
                                format!("mode = '{mode}'\n[{section}]\n{setting} = {value}\n");
                            let read = parse(&text, "guanxi.toml").and_then(|read| read.check());
                            let error =
                                read.map_or_else(|error| error.to_string(), |()| String::new());
                            assert!(!shows(&error), "{text}\n{error}");
                        }
                    }
                    let variable = format!("GUANXI_{section}_{setting}").to_uppercase();
                    for mode in ["embedded", "cluster"] {
                        let pairs = [("GUANXI_MODE", mode), (&variable, &url)];
                        let pairs = pairs.map(|(name, value)| (name.into(), value.into()));
                        let read =
                            load(None, pairs.into_iter()).err().map(|error| error.to_string());
                        assert!(
                            !shows(read.as_deref().unwrap_or("")),
                            "{variable}={url}: {read:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn no_error_shows_a_password_without_quotes() {
        for value in ["12345678", "-1.5e300", "true", "[12345678]", "{ a = 12345678 }"] {
            let text = format!("mode = 'cluster'\n[log]\nsasl_password = {value}\n");
            let error = parse(&text, "guanxi.toml").err().map(|error| error.to_string());
            let error = error.unwrap_or_default();
            assert!(error.contains("sasl_password"), "{error}");
            let shown = ["1234", "1.5", "e300", "true"].iter().any(|part| error.contains(part));
            assert!(!shown, "{error}");
        }
    }
}
