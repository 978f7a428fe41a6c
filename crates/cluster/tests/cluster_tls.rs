//! Encrypted connections to a real MariaDB: whom it lets in, whom we trust, and what a server in
//! the middle gets from a client without TLS.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use guanxi_cluster::sql::Database;
use guanxi_cluster::sql::tls::Tls;
use guanxi_services::{MariaDb, SqlServer};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;

const CONNECTIONS_MAX: usize = 2;

struct Stage {
    server: MariaDb,
    folder: TempDir,
}

impl Stage {
    /// A server with a certificate for this host, if any.
    fn start(test: &str, host: Option<&str>) -> Option<Stage> {
        let folder = TempDir::new().unwrap();
        let mut options = Vec::new();
        if let Some(host) = host {
            let CertifiedKey { cert, signing_key } =
                generate_simple_self_signed([host.to_owned()]).unwrap();
            for (option, name, text) in [
                ("--ssl-cert", "cert.pem", cert.pem()),
                ("--ssl-key", "key.pem", signing_key.serialize_pem()),
            ] {
                let path = folder.path().join(name);
                std::fs::write(&path, text).unwrap();
                options.push(format!("{option}={}", path.display()));
            }
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let server = MariaDb::start_with_or_skip(test, &options)?;
        server.query("CREATE DATABASE d");
        Some(Stage { server, folder })
    }

    fn ca(&self) -> Option<PathBuf> {
        Some(self.folder.path().join("cert.pem"))
    }

    fn open(&self, tls: &Tls) -> Result<String, String> {
        let database = Database::open_with(&self.server.database_url("d"), tls, CONNECTIONS_MAX)
            .map_err(|error| error.to_string())?;
        let mut session = database.session(Instant::now() + Duration::from_secs(30)).unwrap();
        let rows = session.rows("SHOW STATUS LIKE 'Ssl_cipher'").unwrap();
        Ok(rows[0].get::<String, _>(1).unwrap())
    }
}

#[track_caller]
fn says(answer: Result<String, String>, part: &str) {
    let error = answer.unwrap_err();
    assert!(error.contains(part), "{error}");
}

#[test]
fn connections_are_encrypted_and_the_server_is_the_right_one() {
    let test = "connections_are_encrypted_and_the_server_is_the_right_one";
    let Some(stage) = Stage::start(test, Some("127.0.0.1")) else { return };
    assert_eq!(stage.open(&Tls::Off).as_deref(), Ok(""), "nothing is encrypted by itself");
    let cipher = stage.open(&Tls::Required { ca: stage.ca() }).unwrap();
    assert!(!cipher.is_empty());
    stage.server.query("SET GLOBAL require_secure_transport = ON");
    stage.open(&Tls::Required { ca: stage.ca() }).unwrap();
    // MariaDB does not say more than that it does not let one in.
    says(stage.open(&Tls::Off), "whether it wants TLS (store.tls)");
    // Signed by nobody that is commonly trusted, or by another.
    says(stage.open(&Tls::Required { ca: None }), "name in store.tls_ca who signed it");
    let other = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let path = stage.folder.path().join("other.pem");
    std::fs::write(&path, other.cert.pem()).unwrap();
    says(stage.open(&Tls::Required { ca: Some(path.clone()) }), "is not trusted");
    std::fs::write(&path, "nothing").unwrap();
    says(stage.open(&Tls::Required { ca: Some(path.clone()) }), "has no certificate in PEM");
    std::fs::remove_file(&path).unwrap();
    says(stage.open(&Tls::Required { ca: Some(path) }), "cannot be read");
}

#[test]
fn a_certificate_of_another_host_and_a_server_without_one_are_refused() {
    let test = "a_certificate_of_another_host_and_a_server_without_one_are_refused";
    let Some(stage) = Stage::start(test, Some("db.example")) else { return };
    says(stage.open(&Tls::Required { ca: stage.ca() }), "the host as the certificate does");
    drop(stage);
    let Some(stage) = Stage::start(test, None) else { return };
    says(stage.open(&Tls::Required { ca: None }), "does not speak TLS");
}

const PASSWORD: &str = "not for everybody";

/// What a client says before it goes.
const FAREWELL: &[u8] = b"\x01\0\0\0\x01";

/// A server that asks for the password itself, as one in the middle would, and what it hears.
fn asked_for_the_password(listener: &TcpListener, question: &[u8]) -> Vec<u8> {
    let (mut client, _) = listener.accept().unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let capabilities = 0x0008_a20f_u32.to_le_bytes();
    let mut greeting = b"\x0a8.0.36\0".to_vec();
    greeting.extend(7_u32.to_le_bytes());
    greeting.extend(b"12345678\0");
    greeting.extend(&capabilities[..2]);
    greeting.extend([45, 2, 0]);
    greeting.extend(&capabilities[2..]);
    greeting.push(21);
    greeting.extend([0; 10]);
    greeting.extend(b"123456789012\0caching_sha2_password\0");
    send(&mut client, 0, &greeting);
    let mut heard = vec![0; 1 << 12];
    let login = client.read(&mut heard).unwrap();
    assert!(login > 0, "the client came");
    send(&mut client, 2, question);
    let count = client.read(&mut heard).unwrap_or_default();
    heard.truncate(count);
    heard
}

fn send(client: &mut TcpStream, sequence: u8, payload: &[u8]) {
    let mut packet = (payload.len() as u32).to_le_bytes().to_vec();
    packet[3] = sequence;
    packet.extend(payload);
    client.write_all(&packet).unwrap();
}

/// What a client tells a server that asks so, and how it ends.
fn told(question: &'static [u8], host: &str, parameters: &str) -> (Vec<u8>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || asked_for_the_password(&listener, question));
    let password = PASSWORD.replace(' ', "%20");
    let url = format!("mysql://u:{password}@{host}:{port}/d{parameters}");
    let error = Database::open(&url, CONNECTIONS_MAX).unwrap_err().to_string();
    assert!(!error.contains(PASSWORD), "{error}");
    (server.join().unwrap(), error)
}

#[track_caller]
fn assert_nothing(heard: &[u8]) {
    assert!([&b""[..], FAREWELL].contains(&heard), "it was told {heard:?}");
}

/// "Full authentication": what follows is the password, or a question for the key.
const FULL: &[u8] = &[1, 4];

#[test]
fn a_server_in_the_middle_does_not_get_the_password() {
    // An address that leads here and is not one of the loopback.
    let (heard, error) = told(FULL, "0.0.0.0", "");
    assert!(error.contains("which it gets over TLS only"), "{error}");
    assert_nothing(&heard);
}

#[test]
fn no_address_allows_what_tells_a_password() {
    for (question, parameters) in [
        (&b"\xfemysql_clear_password\0"[..], "?enable_cleartext_plugin=true"),
        (b"\xfemysql_old_password\x0012345678\0", "?secure_auth=false"),
    ] {
        for host in ["127.0.0.1", "0.0.0.0"] {
            let (heard, _) = told(question, host, parameters);
            assert_nothing(&heard);
        }
    }
}
