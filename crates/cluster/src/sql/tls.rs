//! Whether connections to the database are encrypted, and what a server that cannot be trusted gets
//! from us. With TLS its certificate is verified, host name and all. Without, a server elsewhere
//! never gets the password itself: of the ways to log in, the one that would encrypt it with a key
//! of the server's own choosing is closed. Those that tell it as it is, or prove it in the way that
//! was given up long ago, are closed always, whatever the address says.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use mysql::{DriverError, Opts, OptsBuilder, SslOpts};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Tls {
    #[default]
    Off,
    /// No connection without it. The authority that signed the server's certificate, as PEM, beside
    /// those that are commonly trusted.
    Required { ca: Option<PathBuf> },
}

/// What is said to whoever gave the address, in the words in which it was given.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    pub url: &'static str,
    /// What asks for TLS.
    pub required: &'static str,
    pub ca: &'static str,
}

/// Of an instance's own database.
pub(super) const STORE: Words =
    Words { url: "store.url", required: "store.tls = \"required\"", ca: "store.tls_ca" };

const PEM_BEGIN: &str = "-----BEGIN CERTIFICATE-----";
/// No file has this name, so the driver finds no key to encrypt a password with, and asks for none.
const NO_KEY: &str = "";
/// What a server says to a client that comes without TLS and must not.
const INSECURE_TRANSPORT: u16 = 3159;
/// How the driver words a certificate that it does not take.
const WRONG_CERTIFICATE: &str = "invalid peer certificate";

impl Tls {
    /// The options of an address with this.
    pub fn laid_over(&self, opts: Opts, words: &Words) -> Result<OptsBuilder, String> {
        let remote = !is_loopback(&opts.get_ip_or_hostname());
        let key = opts.get_server_key_path().map(PathBuf::from);
        let opts = OptsBuilder::from_opts(opts).enable_cleartext_plugin(false).secure_auth(true);
        match self {
            Tls::Off => Ok(opts.server_key_path(key.or_else(|| remote.then(no_key)))),
            Tls::Required { ca } => {
                if let Some(path) = ca {
                    let named = format!("{} ({})", words.ca, path.display());
                    let text = std::fs::read_to_string(path)
                        .map_err(|error| format!("{named} cannot be read: {error}"))?;
                    if !text.contains(PEM_BEGIN) {
                        return Err(format!("{named} has no certificate in PEM"));
                    }
                }
                Ok(opts.ssl_opts(Some(SslOpts::default().with_root_cert_path(ca.clone()))))
            }
        }
    }
}

fn no_key() -> PathBuf {
    PathBuf::from(NO_KEY)
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// What an error of connecting has to do with TLS, and what its operator has to do.
pub fn explained(opts: &Opts, server: &str, words: &Words, error: &mysql::Error) -> Option<String> {
    let Words { url, required, ca } = words;
    let text = error.to_string();
    if let Some(at) = text.find(WRONG_CERTIFICATE) {
        let why = text[at + WRONG_CERTIFICATE.len()..].trim_matches([':', ' ', '\'', '}']);
        return Some(format!(
            "the certificate of {server} is not trusted ({why}): name in {ca} who signed it, and \
             in {url} the host as the certificate does"
        ));
    }
    match error {
        mysql::Error::DriverError(DriverError::TlsNotSupported) => Some(format!(
            "{server} does not speak TLS: give it a certificate, or go without {required} where \
             nobody else is on the way to it"
        )),
        mysql::Error::MySqlError(error) if error.code == INSECURE_TRANSPORT => Some(format!(
            "{server} lets nobody in without TLS: say {required}, and in {ca} who signed its \
             certificate"
        )),
        mysql::Error::IoError(error)
            if error.kind() == io::ErrorKind::NotFound && opts.get_server_key_path().is_some() =>
        {
            Some(format!(
                "{server} wants the password itself (caching_sha2_password), which it gets over \
                 TLS only: say {required}"
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_server_is() {
        for host in ["localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["0.0.0.0", "10.0.0.1", "localhost.example", "db", "[::]", ""] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
