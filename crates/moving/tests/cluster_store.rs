//! The cluster's tables pass the suite that every store passes, on each database.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use guanxi_cluster::schema;
use guanxi_cluster::sql::Database;
use guanxi_embedded::store::conformance::{self, Reopenable, Subject};
use guanxi_moving::store::SqlStore;
use guanxi_services::{SqlServer, fresh_database, shared};

/// A writer, the snapshots that a case holds at once, and readers beside them.
const CONNECTIONS_MAX: usize = 16;

fn fresh(server: &impl SqlServer) -> Arc<Database> {
    let database = Database::open(&fresh_database(server), CONNECTIONS_MAX).unwrap();
    schema::migrate(&database).unwrap();
    database
}

fn subject(database: &Arc<Database>) -> Subject {
    Subject::Tables(Box::new(SqlStore::open(database).unwrap()))
}

fn conforms(server: &impl SqlServer) {
    conformance::run(|| subject(&fresh(server))).unwrap();
}

fn conforms_reopened(server: &impl SqlServer) {
    let make = || {
        let database = fresh(server);
        let store = subject(&database);
        let reopen = move |store: Subject| {
            drop(store);
            subject(&database)
        };
        Reopenable { store, reopen: Box::new(reopen) }
    };
    conformance::run_reopened(make).unwrap();
}

#[test]
fn tables_in_mariadb_conform() {
    if let Some(server) = shared::mariadb_or_skip("tables_in_mariadb_conform") {
        conforms(server);
    }
}

#[test]
fn tables_in_tidb_conform() {
    if let Some(server) = shared::tidb_or_skip("tables_in_tidb_conform") {
        conforms(server);
    }
}

#[test]
fn tables_in_mariadb_stand_when_opened_again() {
    if let Some(server) = shared::mariadb_or_skip("tables_in_mariadb_stand_when_opened_again") {
        conforms_reopened(server);
    }
}

#[test]
fn tables_in_tidb_stand_when_opened_again() {
    if let Some(server) = shared::tidb_or_skip("tables_in_tidb_stand_when_opened_again") {
        conforms_reopened(server);
    }
}
