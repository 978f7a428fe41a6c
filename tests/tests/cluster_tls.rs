//! A cluster whose Kafka speaks over TLS and wants a login. What the binary was built without it
//! refuses, so that nobody believes to be safe who is not.

use guanxi_services::{fresh_database, shared};
use guanxi_tests::Cluster;

const PASSWORD: &str = "open, sesame";

/// A cluster with these settings of its log.
fn cluster(url: &str, brokers: &str, log: &str) -> Cluster {
    let cluster = Cluster::on(url, brokers);
    let settings = std::fs::read_to_string(cluster.config()).expect("the settings are there");
    let settings = settings.replace("[log]\n", &format!("[log]\n{log}\n"));
    std::fs::write(cluster.config(), settings).expect("they can be written");
    cluster
}

fn login(mechanism: &str, password: &str) -> String {
    format!(
        "tls = \"required\"\nsasl = \"{mechanism}\"\nsasl_user = \"guanxi\"\n\
         sasl_password = \"{password}\""
    )
}

#[cfg(not(feature = "kafka-tls"))]
#[test]
fn a_binary_without_tls_says_so() {
    let Some(mariadb) = shared::mariadb_or_skip("a_binary_without_tls_says_so") else { return };
    let url = fresh_database(mariadb);
    for (log, setting) in [
        ("tls = \"required\"".to_owned(), "log.tls"),
        (login("scram-sha-512", PASSWORD), "log.tls"),
    ] {
        let refused = cluster(&url, "127.0.0.1:9", &log).migrate();
        refused.expect_words(2, &[setting, "kafka-tls"]);
        assert!(!refused.stderr.contains(PASSWORD), "{}", refused.stderr);
    }
}

#[cfg(feature = "kafka-tls")]
mod with_tls {
    use std::time::Duration;

    use guanxi_services::Kafka;
    use guanxi_tests::{edge, edge_call, nodes, poll_until};

    use super::*;

    /// Generous: a busy machine is no failure.
    const SOON: Duration = Duration::from_secs(90);
    const MECHANISMS: [&str; 3] = ["plain", "scram-sha-256", "scram-sha-512"];

    #[test]
    fn records_go_through_a_log_behind_tls_and_a_login() {
        let test = "records_go_through_a_log_behind_tls_and_a_login";
        let Some(mariadb) = shared::mariadb_or_skip(test) else { return };
        let place = tempfile::tempdir().expect("a directory");
        let made =
            rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let (ca, both) = (place.path().join("ca.pem"), place.path().join("broker.pem"));
        std::fs::write(&ca, made.cert.pem()).expect("it is written");
        let broker = format!("{}{}", made.signing_key.serialize_pem(), made.cert.pem());
        std::fs::write(&both, broker).expect("it is written");
        let Some(kafka) = Kafka::start_secured_or_skip(test, &both, "guanxi", PASSWORD) else {
            return;
        };
        // One at a time: it changes a user once.
        for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
            let mut scram = kafka.tool("kafka.admin.ConfigCommand");
            scram.args(["--alter", "--entity-type", "users", "--entity-name", "guanxi"]);
            scram.args(["--add-config", &format!("{mechanism}=[password={PASSWORD}]")]);
            let told = scram.output().expect("Kafka's own program");
            assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        }

        let trusts = |lines: String| format!("{lines}\ntls_ca = \"{}\"", ca.display());
        for mechanism in MECHANISMS {
            let (url, brokers) = (fresh_database(mariadb), kafka.secured_brokers());
            let cluster = cluster(&url, &brokers, &trusts(login(mechanism, PASSWORD)));
            cluster.migrate().ok();
            let instance = cluster.instance();
            let [fan, star] = nodes();
            instance.put(edge("follow", fan, star)).expect_change(true, "live");
            poll_until("the target's side", SOON, || {
                let incoming = instance.get(edge_call("follow", star, "incoming"));
                (incoming.ok()["total"] == 1).then_some(())
            });
            let stopped = instance.terminate();
            assert!(!stopped.log.contains(PASSWORD), "{}", stopped.log);
        }

        // Who is not known, and whom nobody vouches for.
        let (url, brokers) = (fresh_database(mariadb), kafka.secured_brokers());
        for wrong in [trusts(login("scram-sha-512", "guessed")), login("scram-sha-512", PASSWORD)] {
            let refused = cluster(&url, &brokers, &wrong).migrate();
            assert_ne!(refused.code, Some(0), "{}", refused.stdout);
            assert!(!refused.stderr.contains(PASSWORD), "{}", refused.stderr);
        }
    }
}
