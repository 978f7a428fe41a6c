//! What the command line says of a source: its address, and which of its columns or keys mean
//! what.

use std::env;
use std::path::PathBuf;

use clap::Args;

use super::row::Unit;
use crate::config::{Address, LogPassword, refuse_half_password};
use crate::failure::Failure;

const PASSWORD_VARIABLE: &str = "GUANXI_FROM_PASSWORD";
const OPTIONS: &str = "Options with --from";

#[derive(Debug, Args)]
#[command(next_help_heading = OPTIONS)]
pub struct FromFlags {
    /// Imports from a database instead of a file: mysql://user:password@host/database (MySQL,
    /// MariaDB, TiDB) or redis://host/0. The source is only read. A password may stand in the
    /// environment variable GUANXI_FROM_PASSWORD instead.
    #[arg(long, value_name = "URL", conflicts_with_all = ["file", "format"])]
    from: Option<Address>,
    /// The kind of the edges.
    #[arg(long, requires = "from")]
    kind: Option<String>,
    /// Shows the first 10 lines as they would be imported, and counts; sends nothing.
    #[arg(long, requires = "from", conflicts_with = "verify_only")]
    dry_run: bool,
    /// Does not compare both sides afterwards.
    #[arg(long, requires = "from")]
    no_verify: bool,
    /// Imports nothing, and only compares both sides.
    #[arg(long, requires = "from", conflicts_with = "no_verify")]
    verify_only: bool,
    /// Collects what differs between both sides, a JSON object per line.
    #[arg(long, value_name = "FILE", requires = "from", conflicts_with_all = ["no_verify", "dry_run"])]
    differences: Option<PathBuf>,
    /// Keeps the place in the source, from which the same command goes on after a stop. By default
    /// guanxi-import-<id>.place in the working directory.
    #[arg(long, value_name = "FILE", requires = "from")]
    place: Option<PathBuf>,
    /// MySQL: no connection without TLS; the server's certificate is verified. (Redis: rediss://)
    #[arg(long, requires = "table")]
    tls: bool,
    /// MySQL: who signed the server's certificate, as PEM, beside those that are commonly trusted.
    #[arg(long, value_name = "FILE", requires = "tls")]
    tls_ca: Option<PathBuf>,
    /// MySQL: the table.
    #[arg(long, requires = "from")]
    table: Option<String>,
    /// MySQL: who relates.
    #[arg(long, value_name = "COLUMN", requires = "table")]
    source_column: Option<String>,
    /// MySQL: to whom or what.
    #[arg(long, value_name = "COLUMN", requires = "table")]
    target_column: Option<String>,
    /// MySQL: whether the edge stands; see --live, --pending and --removed.
    #[arg(long, value_name = "COLUMN", requires = "live")]
    status_column: Option<String>,
    /// MySQL: values of the status column for an edge that stands.
    #[arg(long, value_name = "VALUES", value_delimiter = ',', requires = "status_column")]
    live: Vec<String>,
    /// MySQL: values of the status column for an edge that waits for approval.
    #[arg(long, value_name = "VALUES", value_delimiter = ',', requires = "status_column")]
    pending: Vec<String>,
    /// MySQL: values of the status column for what is no edge any more. With it a row of any other
    /// value is rejected; without it such rows are skipped.
    #[arg(long, value_name = "VALUES", value_delimiter = ',', requires = "status_column")]
    removed: Vec<String>,
    /// MySQL: since when; TIMESTAMP, DATETIME, or a number of seconds or milliseconds.
    #[arg(long, value_name = "COLUMN", requires = "table")]
    since_column: Option<String>,
    /// MySQL: what a number in the since column counts; by default what it must be.
    #[arg(long, value_enum, requires = "since_column")]
    since_unit: Option<Unit>,
    /// MySQL: the zone of DATETIME columns, such as +08:00; by default UTC.
    #[arg(long, value_name = "OFFSET", requires = "since_column", value_parser = offset, allow_hyphen_values = true)]
    time_zone: Option<String>,
    /// MySQL: the group's name; NULL, 0 and the empty text are no group.
    #[arg(long, value_name = "COLUMN", requires = "table")]
    group_column: Option<String>,
    /// MySQL: who owns the target; NULL, 0 and the empty text are nobody.
    #[arg(long, value_name = "COLUMN", requires = "table")]
    owner_column: Option<String>,
    /// MySQL: data of the edge.
    #[arg(long, value_name = "COLUMN", requires = "table")]
    data_column: Option<String>,
    /// MySQL: the unique key in whose order the table is read; by default that on the source and
    /// target columns, else the primary key.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', requires = "table")]
    key: Vec<String>,
    /// MySQL: reads only rows for which this condition holds.
    #[arg(long = "where", value_name = "CONDITION", requires = "table")]
    condition: Option<String>,
    /// Redis: the keys of the sorted sets, such as 'following:{source}', whose members are targets,
    /// or 'fans:{target}', whose members are sources.
    #[arg(long, value_name = "PATTERN", requires = "from", conflicts_with = "table")]
    keys: Option<String>,
    /// Redis: what a score counts; by default seconds or milliseconds, whichever it must be.
    #[arg(long, value_enum, requires = "keys")]
    score: Option<Unit>,
}

/// What is imported from where.
#[derive(Debug)]
pub struct ImportOrder {
    pub url: Address,
    pub password: Option<LogPassword>,
    /// Towards MySQL.
    /// Whether a database is spoken to with TLS alone, and who signed its certificate.
    pub tls: bool,
    pub tls_ca: Option<PathBuf>,
    pub kind: String,
    pub mapping: Mapping,
    pub place: Option<PathBuf>,
    pub differences: Option<PathBuf>,
    pub dry_run: bool,
    pub verify: bool,
    pub verify_only: bool,
}

#[derive(Debug)]
pub enum Mapping {
    MySql(Box<MySqlMapping>),
    Redis(RedisMapping),
}

#[derive(Debug, Clone)]
pub struct MySqlMapping {
    pub table: String,
    pub source_column: String,
    pub target_column: String,
    pub status_column: Option<String>,
    pub live: Vec<String>,
    pub pending: Vec<String>,
    pub removed: Vec<String>,
    pub since_column: Option<String>,
    pub since_unit: Unit,
    pub time_zone: String,
    pub group_column: Option<String>,
    pub owner_column: Option<String>,
    pub data_column: Option<String>,
    pub key: Vec<String>,
    pub condition: Option<String>,
}

#[derive(Debug, Clone)]
pub struct RedisMapping {
    pub keys: String,
    pub score: Option<Unit>,
}

impl FromFlags {
    /// None where a file is imported.
    pub fn asked(&self) -> Result<Option<ImportOrder>, Failure> {
        let Some(url) = self.from.clone() else {
            return Ok(None);
        };
        let kind = self.needed("--kind", &self.kind)?;
        let scheme = url.as_str().split_once("://").map(|(scheme, _)| scheme);
        let mapping = match scheme {
            Some("mysql") => Mapping::MySql(Box::new(self.mysql()?)),
            Some("redis" | "rediss") => Mapping::Redis(self.redis()?),
            _ => {
                return Err(Failure::usage(format!(
                    "--from {url}: no source is known by this name"
                ))
                .next("it begins with mysql:// or redis://"));
            }
        };
        let unclear = |what| {
            Failure::usage(format!("--from: {what}"))
                .next(format!("or set {PASSWORD_VARIABLE}, and leave it out of the address"))
        };
        refuse_half_password(url.as_str()).map_err(unclear)?;
        let password = env::var_os(PASSWORD_VARIABLE).filter(|password| !password.is_empty());
        let password = password.map(|password| password.into_string().map(LogPassword::from));
        let no_text = |_| Failure::usage(format!("{PASSWORD_VARIABLE} is not UTF-8 text"));
        let password = password.transpose().map_err(no_text)?;
        Ok(Some(ImportOrder {
            url,
            password,
            tls: self.tls,
            tls_ca: self.tls_ca.clone(),
            kind,
            mapping,
            place: self.place.clone(),
            differences: self.differences.clone(),
            dry_run: self.dry_run,
            verify: !self.no_verify,
            verify_only: self.verify_only,
        }))
    }

    fn mysql(&self) -> Result<MySqlMapping, Failure> {
        if self.keys.is_some() {
            return Err(Failure::usage("--keys is about Redis, and --from names MySQL"));
        }
        Ok(MySqlMapping {
            table: self.needed("--table", &self.table)?,
            source_column: self.needed("--source-column", &self.source_column)?,
            target_column: self.needed("--target-column", &self.target_column)?,
            status_column: self.status_column.clone(),
            live: self.live.clone(),
            pending: self.pending.clone(),
            removed: self.removed.clone(),
            since_column: self.since_column.clone(),
            since_unit: self.since_unit.unwrap_or(Unit::Auto),
            time_zone: self.time_zone.clone().unwrap_or_else(|| "Z".to_owned()),
            group_column: self.group_column.clone(),
            owner_column: self.owner_column.clone(),
            data_column: self.data_column.clone(),
            key: self.key.clone(),
            condition: self.condition.clone(),
        })
    }

    fn redis(&self) -> Result<RedisMapping, Failure> {
        if self.table.is_some() {
            return Err(Failure::usage("--table is about MySQL, and --from names Redis"));
        }
        Ok(RedisMapping { keys: self.needed("--keys", &self.keys)?, score: self.score })
    }

    fn needed(&self, flag: &str, value: &Option<String>) -> Result<String, Failure> {
        value.clone().ok_or_else(|| {
            Failure::usage(format!("--from needs {flag}"))
                .next("`guanxi import --help` shows how columns and keys are named")
        })
    }
}

impl ImportOrder {
    /// Tells this source and mapping from others; it holds no password.
    pub fn named(&self) -> String {
        format!("{} as {} by {:?}", self.url, self.kind, self.mapping)
    }

    pub fn shown(&self) -> String {
        match &self.mapping {
            Mapping::MySql(mapping) => format!("table {}", mapping.table),
            Mapping::Redis(mapping) => format!("keys {}", mapping.keys),
        }
    }
}

impl MySqlMapping {
    /// The columns that it needs, each with its flag.
    pub fn columns(&self) -> Vec<(&'static str, &str)> {
        let columns = [
            ("--source-column", Some(&self.source_column)),
            ("--target-column", Some(&self.target_column)),
            ("--status-column", self.status_column.as_ref()),
            ("--since-column", self.since_column.as_ref()),
            ("--group-column", self.group_column.as_ref()),
            ("--owner-column", self.owner_column.as_ref()),
            ("--data-column", self.data_column.as_ref()),
        ];
        let named = columns.into_iter().filter_map(|(flag, name)| Some((flag, name?.as_str())));
        named.chain(self.key.iter().map(|name| ("--key", name.as_str()))).collect()
    }
}

/// An offset as a time has it.
fn offset(text: &str) -> Result<String, String> {
    let number = |at: std::ops::Range<usize>| text.get(at).and_then(|part| part.parse::<u8>().ok());
    let signed = text.len() == 6 && (text.starts_with('+') || text.starts_with('-'));
    let (hours, minutes) = (number(1..3), number(4..6));
    let right = signed
        && text.get(3..4) == Some(":")
        && text.bytes().filter(u8::is_ascii_digit).count() == 4
        && hours.is_some_and(|hours| hours <= 14)
        && minutes.is_some_and(|minutes| minutes < 60);
    match right || text == "Z" {
        true => Ok(text.to_owned()),
        false => Err("an offset looks like +08:00".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets() {
        for right in ["+08:00", "-03:30", "+00:00", "Z"] {
            assert_eq!(offset(right).as_deref(), Ok(right));
        }
        for wrong in ["", "8", "+8:00", "+0800", "+15:00", "+08:60", "Asia/Shanghai", "+-1:00"] {
            assert!(offset(wrong).is_err(), "{wrong}");
        }
    }
}
