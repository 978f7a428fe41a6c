//! What `guanxi move` cannot do: each refusal says what happened, to what, and what to do next.

use std::path::Path;

use guanxi_services::{SqlServer, shared as services};
use guanxi_tests::{Cli, Cluster, Server, edge, edge_call, nodes, poll_until, start_standby};

use super::{SOON, fact, run_move};

/// The settings of a cluster, one of them changed, in a file beside them.
fn changed(cluster: &Cluster, name: &str, value: &str) -> String {
    let settings = std::fs::read_to_string(cluster.config()).expect("the settings are there");
    let lines = settings.lines().map(|line| match line.starts_with(&format!("{name} = ")) {
        true => format!("{name} = {value}\n"),
        false => format!("{line}\n"),
    });
    write(cluster.directory(), "changed.toml", &lines.collect::<String>())
}

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).expect("it can be written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn wrong_arguments_are_said_before_anything_is_asked() {
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    let file = |name: &str, text: &str| write(directory.path(), name, text);
    let missing = directory.path().join("missing.toml");
    let missing = missing.to_str().expect("UTF-8");
    let embedded = file("embedded.toml", "mode = \"embedded\"\n");
    let broken = file("broken.toml", "mode = \n");
    let unknown = file("unknown.toml", "mode = \"cluster\"\n[store]\nuri = \"mysql://a/b\"\n");
    let no_store = file("no_store.toml", "mode = \"cluster\"\n");
    let store = "mode = \"cluster\"\n[store]\nurl = \"mysql://root@127.0.0.1:9/guanxi\"\n";
    let fine = file("fine.toml", &format!("{store}[log]\nbrokers = \"127.0.0.1:9\"\n"));
    let long = format!("http://{}", "h".repeat(300));
    let cases: [(&[&str], i32, &[&str]); 11] = [
        (&["move"], 2, &["--to"]),
        (&["move", "--to", missing], 2, &["missing.toml", "No such file", "with --to"]),
        (&["move", "--to", &embedded], 2, &["embedded.toml", "mode = \"cluster\"", "--to"]),
        (&["move", "--to", &broken], 2, &["broken.toml", "line 1", "--to"]),
        (&["move", "--to", &unknown], 2, &["unknown.toml", "uri", "--to"]),
        (&["move", "--to", &no_store], 2, &["no_store.toml", "store.url", "--to"]),
        (&["move", "--to", &fine, "--server", "ftp://a"], 2, &["ftp://a", "http://"]),
        (&["move", "--to", &fine, "--now-at", ""], 2, &["--now-at", "http://cluster"]),
        (&["move", "--to", &fine, "--now-at", "not a url"], 2, &["--now-at", "http://cluster"]),
        (&["move", "--to", &fine, "--now-at", &long], 2, &["--now-at", "http://cluster"]),
        (&["move", "--to", &fine], 3, &["127.0.0.1:9", "store.url", "run the same command"]),
    ];
    for (arguments, code, words) in cases {
        let ran = Cli::default().run(arguments);
        ran.expect_words(code, words);
        assert!(!ran.stderr.contains("--config"), "{}", ran.stderr);
    }
}

#[test]
fn what_cannot_be_moved_is_refused() {
    let Some(cluster) = Cluster::start_or_skip("refused moves") else { return };
    let server = Server::start();
    let used = cluster.instance();
    let running = ["instances of this cluster are running", "stop them first"];
    run_move(&cluster, &server, &[]).expect_words(1, &running);
    // It gives its leases back.
    used.terminate();
    run_move(&cluster, &server, &[]).expect_words(1, &["the database is not empty"]);
    let [fan, star] = nodes();
    server.put(edge("follow", fan, star)).expect_change(true, "live");
    let Some(empty) = Cluster::prepare_or_skip("refused moves") else { return };
    let standby = start_standby(&server);
    run_move(&empty, &standby, &[])
        .expect_words(1, &["is a standby", &format!("--server {}", server.url())]);
    let database = services::mariadb_or_skip("refused moves").expect("it was there a moment ago");
    let to = |path: &str| Cli::of(&server).run(&["move", "--to", path]);
    let url = format!("mysql://nobody:secret@127.0.0.1:{}/{}", database.port(), empty.database);
    let ran = to(&changed(&empty, "url", &format!("\"{url}\"")));
    ran.expect_words(3, &["'nobody'", "password", "store.url"]);
    assert!(!ran.stderr.contains("secret"), "{}", ran.stderr);
    let url = format!("mysql://root@127.0.0.1:{}/nowhere", database.port());
    to(&changed(&empty, "url", &format!("\"{url}\""))).expect_words(3, &["no database 'nowhere'"]);
    to(&changed(&empty, "brokers", "\"127.0.0.1:9\""))
        .expect_words(3, &["127.0.0.1:9", "log.brokers"]);
    // Another cluster's topic.
    let topic = format!("\"{}\"", cluster.topic);
    used_topic(&cluster);
    to(&changed(&empty, "topic", &topic)).expect_words(1, &[&cluster.topic, "log.topic"]);
    // Nothing that is a service to be moved.
    let config = empty.config();
    let arguments = ["move", "--to", config.to_str().expect("UTF-8")];
    let away = Cli::default().with("GUANXI_SERVER", "http://127.0.0.1:9");
    away.run(&arguments).expect_words(3, &["nothing answers at http://127.0.0.1:9", "--server"]);
    let instance = cluster.instance();
    Cli::of(&instance).run(&arguments).expect_words(1, &["a cluster", "embedded"]);
    // Nothing of this has touched the empty one.
    assert_eq!(fact(database, &empty, "move.phase"), None);
    run_move(&empty, &server, &[]).ok();
    let instance = empty.instance();
    assert_eq!(instance.get(edge("follow", fan, star)).ok()["related"], true);
    // It is done for this service, and says so to nobody else.
    run_move(&empty, &server, &[]).ok();
    let another = Server::start();
    run_move(&empty, &another, &[])
        .expect_words(1, &["nothing of", &another.url(), "another service"]);
    drop((server, standby));
    away.run(&arguments).expect_words(3, &["nothing answers", "is done, up to position"]);
    // As if it had not come to its end: another service does not continue it.
    drop(instance);
    let phase = |value: u32| {
        let table = &empty.database;
        database.query(&format!("UPDATE {table}.facts SET value={value} WHERE name='move.phase'"));
    };
    phase(3);
    run_move(&empty, &another, &[]).expect_words(1, &[&another.url(), "another history"]);
    phase(4);
    let instance = empty.instance();
    assert_eq!(instance.get(edge("follow", fan, star)).ok()["related"], true);
}

/// Writes into the cluster's topic.
fn used_topic(cluster: &Cluster) {
    let instance = cluster.instance();
    let [fan, star] = nodes();
    instance.put(edge("follow", fan, star)).expect_change(true, "live");
    // Which came by the log; who relays may first have to wait for a killed one's leases.
    let followers = || instance.get(edge_call("follow", star, "incoming")).ok()["total"] == 1;
    poll_until("the edge at its target", SOON, || followers().then_some(()));
}
