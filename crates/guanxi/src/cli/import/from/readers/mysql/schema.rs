//! What a table is: its columns, and the unique key in whose order it is read.

use mysql::Conn;
use mysql::prelude::Queryable;

use super::failed;
use crate::cli::import::from::flags::MySqlMapping;
use crate::failure::Failure;

/// Tables that an error names.
const TABLES_SHOWN_MAX: usize = 50;
/// Types whose values compare in a statement as they are ordered in an index.
const KEY_TYPES: [&str; 9] =
    ["tinyint", "smallint", "mediumint", "int", "bigint", "char", "varchar", "binary", "varbinary"];
const TEXT_TYPES: [&str; 4] = ["char", "varchar", "binary", "varbinary"];

#[derive(Debug)]
pub struct SourceTable {
    /// Names and types of its columns.
    columns: Vec<(String, String)>,
    /// The columns of the key, in the order of its index.
    pub key: Vec<String>,
}

/// A unique index: name and columns.
type Unique = (String, Vec<String>);

impl SourceTable {
    /// The table that the mapping names, if it has all that the mapping needs.
    pub fn find(connection: &mut Conn, mapping: &MySqlMapping) -> Result<SourceTable, Failure> {
        let name = &mapping.table;
        let columns: Vec<(String, String, String)> = connection
            .exec(
                "SELECT COLUMN_NAME, LOWER(DATA_TYPE), IS_NULLABLE FROM information_schema.COLUMNS \
                 WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION",
                (name,),
            )
            .map_err(|error| failed(&error, name))?;
        if columns.is_empty() {
            return Err(no_table(connection, name)?);
        }
        let nullable = |column: &str| {
            columns.iter().any(|(name, _, nullable)| is(name, column) && nullable != "NO")
        };
        let indexes: Vec<(String, u64, Option<String>, Option<u64>)> = connection
            .exec(
                "SELECT INDEX_NAME, NON_UNIQUE, COLUMN_NAME, SUB_PART FROM \
                 information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? \
                 ORDER BY INDEX_NAME, SEQ_IN_INDEX",
                (name,),
            )
            .map_err(|error| failed(&error, name))?;
        let mut uniques: Vec<Unique> = Vec::new();
        for (index, _, column, part) in indexes.iter().filter(|(_, other, ..)| *other == 0) {
            // A part of a column, or an expression, is nothing to compare with.
            let column = column.clone().filter(|_| part.is_none()).unwrap_or_default();
            match uniques.last_mut() {
                Some((last, columns)) if last == index => columns.push(column),
                _ => uniques.push((index.clone(), vec![column])),
            }
        }
        uniques.retain(|(_, columns)| {
            columns.iter().all(|column| !column.is_empty() && !nullable(column))
        });
        let columns = columns.into_iter().map(|(name, kind, _)| (name, kind)).collect();
        let mut table = SourceTable { columns, key: Vec::new() };
        for (flag, column) in mapping.columns() {
            table.require(flag, column, name)?;
        }
        table.key = table.key_among(uniques, mapping)?;
        Ok(table)
    }

    fn require(&self, flag: &str, column: &str, table: &str) -> Result<(), Failure> {
        if self.columns.iter().any(|(name, _)| is(name, column)) {
            return Ok(());
        }
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        let message = format!("{flag}: table {table} has no column {column}");
        Err(Failure::usage(message).next(format!("its columns are {}", names.join(", "))))
    }

    /// The key that was asked for, else the pair, else the primary key, else any.
    fn key_among(
        &self,
        uniques: Vec<Unique>,
        mapping: &MySqlMapping,
    ) -> Result<Vec<String>, Failure> {
        let usable = |unique: &Unique| {
            unique.1.iter().all(|column| KEY_TYPES.contains(&self.type_of(column)))
        };
        let of = |unique: &Unique, wanted: &[String]| {
            unique.1.len() == wanted.len()
                && wanted.iter().all(|wanted| unique.1.iter().any(|column| is(column, wanted)))
        };
        let uniques: Vec<Unique> = uniques.into_iter().filter(usable).collect();
        let found = match mapping.key.as_slice() {
            [] => {
                let pair = [mapping.source_column.clone(), mapping.target_column.clone()];
                let paired = uniques.iter().find(|unique| of(unique, &pair));
                let primary = || uniques.iter().find(|(name, _)| is(name, "PRIMARY"));
                paired.or_else(primary).or_else(|| uniques.first())
            }
            wanted => uniques.iter().find(|unique| of(unique, wanted)),
        };
        if let Some((_, columns)) = found {
            return Ok(columns.clone());
        }
        let table = &mapping.table;
        let message = match mapping.key.as_slice() {
            [] => format!("table {table} has no unique key in whose order it could be read"),
            wanted => format!("--key: table {table} has no unique key on {}", wanted.join(", ")),
        };
        let listed: Vec<String> = uniques.iter().map(|(_, key)| key.join(",")).collect();
        Err(Failure::usage(message).next(match listed.is_empty() {
            true => "a key's columns are whole numbers or short texts, and never NULL: add such a \
                     key, or copy the rows into a table that has one"
                .to_owned(),
            false => format!("its unique keys are {}", listed.join("; ")),
        }))
    }

    fn type_of(&self, column: &str) -> &str {
        let found = self.columns.iter().find(|(name, _)| is(name, column));
        found.map_or("", |(_, kind)| kind)
    }

    pub fn is_text(&self, column: &str) -> bool {
        TEXT_TYPES.contains(&self.type_of(column))
    }

    /// What a statement selects: the key's columns first, then those of the mapping.
    pub fn columns(&self, mapping: &MySqlMapping) -> String {
        let mapped = mapping.columns().into_iter().map(|(_, column)| quoted(column));
        let all: Vec<String> = self.key.iter().map(|name| quoted(name)).chain(mapped).collect();
        all.join(", ")
    }
}

fn no_table(connection: &mut Conn, name: &str) -> Result<Failure, Failure> {
    let tables: Vec<String> =
        connection.query("SHOW TABLES").map_err(|error| failed(&error, name))?;
    let failure = Failure::usage(format!("--table: there is no table {name}"));
    let shown = tables.iter().take(TABLES_SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
    Ok(match tables.len() {
        0 => failure.next("the database has no tables, or the user may see none"),
        1..=TABLES_SHOWN_MAX => failure.next(format!("the tables are {shown}")),
        more => failure.next(format!("the first of its {more} tables are {shown}")),
    })
}

fn is(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

/// A name as a statement has it, whatever stands in it.
pub fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}
