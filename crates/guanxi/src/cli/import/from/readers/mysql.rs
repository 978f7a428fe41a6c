//! A table of MySQL, MariaDB or TiDB as a source: pages in the order of a unique key, each read by
//! a statement of its own, so that no transaction stays open and nothing is locked.

mod schema;
mod value;

use std::collections::HashSet;
use std::time::Duration;

use guanxi_cluster::sql::tls::{self, Tls, Words};
use mysql::prelude::Queryable;
use mysql::{Conn, Opts, Params, Row as SqlRow, Value as SqlValue};

use self::schema::{SourceTable, quoted};
use crate::cli::import::from::flags::{ImportOrder, MySqlMapping};
use crate::cli::import::from::place::SourcePlace;
use crate::cli::import::from::row::{RowState, SourceRow};
use crate::cli::import::from::{
    ListSide, PAGE_ROWS, SourceFinding, SourceItem, SourceNode, SourceReader,
};
use crate::config::without_passwords;
use crate::failure::{Exit, Failure};

/// A server that is there accepts at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A page is read through an index; one that takes longer has none, and would never end.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);
const WORDS: Words = Words { url: "--from", required: "--tls", ca: "--tls-ca" };
/// No such column, no such syntax, no such function, the wrong arguments for it: the condition that
/// was given is wrong, and stays so.
const WRONG_STATEMENTS: [u16; 4] = [1054, 1064, 1305, 1582];

pub struct MySql {
    connection: Conn,
    table: SourceTable,
    mapping: MySqlMapping,
    /// The key's values of the last row; none at the beginning.
    after: Option<Vec<SqlValue>>,
    ended: bool,
    /// The last source whose edges were asked for in the other direction.
    node_after: Option<SqlValue>,
}

impl MySql {
    /// Connects, and checks the mapping against the table.
    pub fn open(
        asked: &ImportOrder,
        password: Option<&str>,
        mapping: &MySqlMapping,
    ) -> Result<MySql, Failure> {
        let url = asked.url.as_str();
        let tls = match asked.tls {
            true => Tls::Required { ca: asked.tls_ca.clone() },
            false => Tls::Off,
        };
        let wrong = |what: &str| {
            Failure::usage(format!("--from {}: {what}", without_passwords(url)))
                .next("an address looks like mysql://user:password@host:3306/database")
        };
        let opts = Opts::from_url(url).map_err(|_| wrong("it is no address of MySQL"))?;
        if opts.get_db_name().is_none_or(str::is_empty) {
            return Err(wrong("it names no database"));
        }
        let server = without_passwords(url);
        let mut opts = tls
            .laid_over(opts, &WORDS)
            .map_err(Failure::usage)?
            .tcp_connect_timeout(Some(CONNECT_TIMEOUT))
            .read_timeout(Some(STATEMENT_TIMEOUT))
            .write_timeout(Some(STATEMENT_TIMEOUT))
            .prefer_socket(false)
            .init(vec![
                "SET time_zone = '+00:00'",
                "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            ]);
        if let Some(password) = password {
            opts = opts.pass(Some(password));
        }
        let opts = Opts::from(opts);
        let mut connection = Conn::new(opts.clone()).map_err(|error| {
            let why = tls::explained(&opts, &server, &WORDS, &error)
                .unwrap_or_else(|| without_passwords(&error.to_string()));
            Failure::failed(format!("cannot read from {server}: {why}")).next(
                "check the address, the user and the password given with --from, and whether the \
                 server wants TLS (--tls)",
            )
        })?;
        // Only a further guard; TiDB does not know it.
        let _refused = connection.query_drop("SET SESSION TRANSACTION READ ONLY");
        let table = SourceTable::find(&mut connection, mapping)?;
        let mapping = mapping.clone();
        Ok(MySql { connection, table, mapping, after: None, ended: false, node_after: None })
    }

    fn ask(&mut self, statement: &str, values: Vec<SqlValue>) -> Result<Vec<SqlRow>, Failure> {
        let values = match values.is_empty() {
            true => Params::Empty,
            false => Params::Positional(values),
        };
        self.connection.exec(statement, values).map_err(|error| failed(&error, &self.mapping.table))
    }

    /// The further condition that was given, if any.
    fn condition(&self) -> String {
        match &self.mapping.condition {
            Some(condition) => format!("({condition})"),
            None => "TRUE".to_owned(),
        }
    }

    fn item(&self, row: &SqlRow) -> SourceItem {
        let key: Vec<SqlValue> = (0..self.table.key.len())
            .map(|at| row.as_ref(at).cloned().unwrap_or(SqlValue::NULL))
            .collect();
        let label = self.table.key.iter().zip(&key);
        let label = label.map(|(name, value)| {
            format!("{name}={}", value::text(value, None).as_deref().unwrap_or("NULL"))
        });
        let label = label.collect::<Vec<_>>().join(", ");
        let place = SourcePlace::Array(key.iter().map(value::kept).collect());
        let found = self.row(row, label).map_or(SourceFinding::NoEdge, SourceFinding::Edge);
        SourceItem { found, place: Some(place) }
    }

    /// None for a row that says that there is no edge.
    fn row(&self, row: &SqlRow, label: String) -> Option<SourceRow> {
        let text = |name: &Option<String>| name.as_ref().map(|name| value::of(row, name));
        let Mapped { source, target, state } = self.mapped(row);
        let state = match state {
            StatusValue::State(state) => Ok(state),
            StatusValue::Unknown(status) => Err(status),
            StatusValue::NoEdge => return None,
        };
        let mapping = &self.mapping;
        let since = mapping
            .since_column
            .as_ref()
            .and_then(|name| value::time(row, name, mapping.since_unit, &mapping.time_zone));
        let group = text(&mapping.group_column).map(|group| group.filter(|group| is_named(group)));
        let owner = text(&mapping.owner_column).map(|owner| owner.filter(|owner| is_named(owner)));
        let data = text(&mapping.data_column);
        Some(SourceRow { source, target, state, since, group, owner, data, label })
    }

    fn mapped(&self, row: &SqlRow) -> Mapped {
        let source = value::of(row, &self.mapping.source_column);
        let target = value::of(row, &self.mapping.target_column);
        let Some(column) = &self.mapping.status_column else {
            return Mapped { source, target, state: StatusValue::State(RowState::Live) };
        };
        let status = value::of(row, column).unwrap_or_else(|| "NULL".to_owned());
        let is = |listed: &[String]| listed.contains(&status);
        let state = match () {
            () if is(&self.mapping.live) => StatusValue::State(RowState::Live),
            () if is(&self.mapping.pending) => StatusValue::State(RowState::Pending),
            () if self.mapping.removed.is_empty() || is(&self.mapping.removed) => {
                StatusValue::NoEdge
            }
            () => StatusValue::Unknown(status),
        };
        Mapped { source, target, state }
    }
}

struct Mapped {
    source: Option<String>,
    target: Option<String>,
    state: StatusValue,
}

enum StatusValue {
    State(RowState),
    NoEdge,
    /// None of those that were given.
    Unknown(String),
}

/// Tables say with an empty text or the number 0 that there is none.
fn is_named(text: &str) -> bool {
    !text.is_empty() && text != "0"
}

impl SourceReader for MySql {
    fn go_to(&mut self, place: &SourcePlace) -> Result<(), Failure> {
        self.ended = false;
        self.after = match place {
            SourcePlace::Null => None,
            SourcePlace::Array(key) if key.len() == self.table.key.len() => {
                Some(key.iter().map(value::restored).collect())
            }
            _ => return Err(Failure::file("the file of --place holds no place of this table")),
        };
        Ok(())
    }

    fn page(&mut self) -> Result<Option<Vec<SourceItem>>, Failure> {
        if self.ended {
            return Ok(None);
        }
        let table = quoted(&self.mapping.table);
        let columns = self.table.columns(&self.mapping);
        let (behind, values) = match &self.after {
            None => ("TRUE".to_owned(), Vec::new()),
            Some(after) => behind(&self.table.key, after),
        };
        let order: Vec<String> = self.table.key.iter().map(|name| quoted(name)).collect();
        let order = order.join(", ");
        let condition = self.condition();
        let statement = format!(
            "SELECT {columns} FROM {table} WHERE {behind} AND {condition} ORDER BY {order} \
             LIMIT {PAGE_ROWS}"
        );
        let rows = self.ask(&statement, values)?;
        self.ended = rows.len() < PAGE_ROWS;
        let items: Vec<SourceItem> = rows.iter().map(|row| self.item(row)).collect();
        if let Some(SourceItem { place: Some(place), .. }) = items.last() {
            let ended = self.ended;
            self.go_to(&place.clone())?;
            self.ended = ended;
        }
        Ok((!items.is_empty()).then_some(items))
    }

    fn nodes(&mut self) -> Result<Option<Vec<SourceNode>>, Failure> {
        let (table, source) = (quoted(&self.mapping.table), quoted(&self.mapping.source_column));
        let condition = self.condition();
        let (behind, values) = match &self.node_after {
            None => (format!("{source} IS NOT NULL"), Vec::new()),
            Some(after) => (format!("{source} > ?"), vec![after.clone()]),
        };
        let statement = format!(
            "SELECT DISTINCT {source} FROM {table} WHERE {behind} AND {condition} \
             ORDER BY {source} LIMIT {PAGE_ROWS}"
        );
        let rows = self.ask(&statement, values)?;
        let values: Vec<SqlValue> = rows.into_iter().filter_map(|row| row.unwrap().pop()).collect();
        let Some(last) = values.last() else {
            return Ok(None);
        };
        self.node_after = Some(last.clone());
        let nodes = values.iter().filter_map(|value| {
            let id = value::text(value, None)?;
            Some(SourceNode {
                id: id.parse().ok().filter(|id| *id > 0)?,
                side: ListSide::Outgoing,
                key: id,
            })
        });
        Ok(Some(nodes.collect()))
    }

    fn known(&mut self, node: &SourceNode, others: &[u64]) -> Result<Vec<bool>, Failure> {
        let columns = self.table.columns(&self.mapping);
        let mapping = &self.mapping;
        let (table, condition) = (quoted(&mapping.table), self.condition());
        let (source, target) = (quoted(&mapping.source_column), quoted(&mapping.target_column));
        let marks = vec!["?"; others.len()].join(", ");
        let statement = format!(
            "SELECT {columns} FROM {table} WHERE {source} = ? AND {target} IN ({marks}) \
             AND {condition}"
        );
        // A column of text compares with text, or its index would be of no use.
        let value = |id: u64, column: &str| match self.table.is_text(column) {
            true => SqlValue::Bytes(id.to_string().into_bytes()),
            false => SqlValue::UInt(id),
        };
        let mut values = vec![value(node.id, &mapping.source_column)];
        values.extend(others.iter().map(|id| value(*id, &mapping.target_column)));
        let rows = self.ask(&statement, values)?;
        let mut found: HashSet<u64> = HashSet::new();
        for row in &rows {
            let Mapped { target, state, .. } = self.mapped(row);
            if let (Some(target), StatusValue::State(_)) = (target, state) {
                found.extend(target.parse::<u64>().ok());
            }
        }
        Ok(others.iter().map(|other| found.contains(other)).collect())
    }
}

/// Rows behind a key, written so that an index is used: a >= ? AND (a > ? OR (b > ?)).
fn behind(names: &[String], after: &[SqlValue]) -> (String, Vec<SqlValue>) {
    let (Some((name, names)), Some((value, after))) = (names.split_first(), after.split_first())
    else {
        return ("FALSE".to_owned(), Vec::new());
    };
    let name = quoted(name);
    if names.is_empty() {
        return (format!("{name} > ?"), vec![value.clone()]);
    }
    let (rest, rest_values) = behind(names, after);
    let mut values = vec![value.clone(), value.clone()];
    values.extend(rest_values);
    (format!("{name} >= ? AND ({name} > ? OR ({rest}))"), values)
}

fn failed(error: &mysql::Error, table: &str) -> Failure {
    match error {
        mysql::Error::MySqlError(refusal) => {
            let said = without_passwords(&refusal.message);
            let message = format!("{table} cannot be read: {said} (error {})", refusal.code);
            let exit = match WRONG_STATEMENTS.contains(&refusal.code) {
                true => Exit::Usage,
                false => Exit::Failed,
            };
            Failure::new(exit, message).next("check --where, and what the user may read")
        }
        other => {
            let said = without_passwords(&other.to_string());
            Failure::failed(format!("reading {table} failed: {said}"))
                .next("when the database answers again, run the same command: it goes on")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_behind_a_key() {
        let names = ["a".to_owned(), "b".to_owned(), "c`d".to_owned()];
        let values = [SqlValue::Int(1), SqlValue::Int(2), SqlValue::Int(3)];
        let (text, bound) = behind(&names, &values);
        assert_eq!(text, "`a` >= ? AND (`a` > ? OR (`b` >= ? AND (`b` > ? OR (`c``d` > ?))))");
        let expected = [1, 1, 2, 2, 3].map(SqlValue::Int);
        assert_eq!(bound, expected);
        assert_eq!(behind(&names[..1], &values[..1]).0, "`a` > ?");
    }
}
