//! A DELETE or UPDATE by keys reads, and so locks, the rows of these keys and no others.

use std::fmt::Write;
use std::time::Instant;

use guanxi_cluster::schema;
use guanxi_cluster::sql::{Session, text};
use guanxi_services::{fresh_database, shared};

use crate::bench::{PATIENCE, connect};

const ROWS: u64 = 4_000;
/// A search of the index for each key, and what the server looks at beside.
const READ_MAX: u64 = 10;

/// A table, the columns of its key, and the key of a row; `~` stands for the row's number.
struct Table {
    name: &'static str,
    columns: &'static str,
    key: &'static str,
    rest: &'static str,
    values: &'static str,
}

const TABLES: [Table; 4] = [
    Table {
        name: "incoming",
        columns: "tenant,kind,target,source",
        key: "1,1,~,~",
        rest: "version,state,since",
        values: "1,0,0",
    },
    Table {
        name: "nodes",
        columns: "tenant,node_type,id",
        key: "1,1,~",
        rest: "private",
        values: "1",
    },
    Table {
        name: "idempotency",
        columns: "tenant,name",
        key: "1,'~'",
        rest: "mark,at",
        values: "1,1",
    },
    Table {
        name: "head",
        columns: "tenant,kind,source",
        key: "1,1,~",
        rest: "version",
        values: "1",
    },
];

impl Table {
    fn tuple(&self, out: &mut String, number: u64) {
        let _ = write!(out, "({})", self.key.replace('~', &number.to_string()));
    }

    fn fill(&self, session: &mut Session<'_>) {
        let Table { name, columns, key, rest, values } = self;
        let mut statement = format!("BEGIN;INSERT INTO {name} ({columns},{rest}) VALUES ");
        text::list(&mut statement, 1..=ROWS, |out, number| {
            let _ = write!(out, "({},{values})", key.replace('~', &number.to_string()));
        });
        statement.push_str(";COMMIT");
        session.run(&statement).unwrap();
    }

    /// Deletes one row; how many rows were read for it.
    fn delete(&self, session: &mut Session<'_>, keys: &str) -> u64 {
        let Table { name, columns, .. } = self;
        session.run("FLUSH STATUS").unwrap();
        let delete = format!("DELETE FROM {name} WHERE ({columns}) IN ({keys})");
        assert_eq!(session.run(&delete).unwrap()[0].changed, 1, "{delete}");
        let read = session.rows("SHOW SESSION STATUS LIKE 'Handler_read%'").unwrap();
        let count = |row: &guanxi_cluster::sql::Row| -> u64 {
            row.get::<String, usize>(1).unwrap().parse().unwrap()
        };
        read.iter().map(count).sum()
    }
}

/// As our statements write it; as one would write it without knowing MariaDB, all of the table is
/// read.
#[test]
fn the_deletion_of_one_key_reads_no_more_than_its_row() {
    let test = "the_deletion_of_one_key_reads_no_more_than_its_row";
    let Some(server) = shared::mariadb_or_skip(test) else { return };
    let database = connect(&fresh_database(server));
    schema::migrate(&database).unwrap();
    let mut session = database.session(Instant::now() + PATIENCE).unwrap();
    for table in &TABLES {
        table.fill(&mut session);
        let (mut ours, mut naive) = (String::new(), String::new());
        text::keys(&mut ours, [ROWS / 2], |out, number| table.tuple(out, number));
        text::list(&mut naive, [ROWS / 2 + 1], |out, number| table.tuple(out, number));
        let name = table.name;
        let read = table.delete(&mut session, &ours);
        assert!(read <= READ_MAX, "{name}: {read} rows were read for {ours}");
        let read = table.delete(&mut session, &naive);
        assert!(read > ROWS / 2, "{name}: only {read} rows, so `keys` may write a key once");
    }
}
