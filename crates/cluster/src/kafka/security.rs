//! How the broker is spoken to: over TLS, with a login, with both or neither. Both need a driver
//! that was built with OpenSSL, which the feature `kafka-tls` asks for.

use std::fmt;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// Whether this program can do what `KafkaSecurity` says.
pub const BUILT_WITH_TLS: bool = cfg!(feature = "kafka-tls");

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KafkaSecurity {
    pub tls: Option<KafkaTls>,
    pub login: Option<KafkaLogin>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KafkaTls {
    /// A file of the certificates that vouch for the brokers; without one, those that the system
    /// trusts.
    pub ca: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct KafkaLogin {
    pub mechanism: SaslMechanism,
    pub user: String,
    pub password: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaslMechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

impl SaslMechanism {
    fn name(self) -> &'static str {
        match self {
            SaslMechanism::Plain => "PLAIN",
            SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
            SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// The password is never shown.
impl fmt::Debug for KafkaLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KafkaLogin { mechanism, user, .. } = self;
        f.debug_struct("KafkaLogin")
            .field("mechanism", mechanism)
            .field("user", user)
            .finish_non_exhaustive()
    }
}

impl KafkaSecurity {
    pub(super) fn set(&self, config: &mut ClientConfig) {
        let protocol = match (&self.tls, &self.login) {
            (None, None) => return,
            (Some(_), None) => "ssl",
            (None, Some(_)) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(ca) = self.tls.as_ref().and_then(|tls| tls.ca.as_ref()) {
            config.set("ssl.ca.location", ca);
        }
        if let Some(KafkaLogin { mechanism, user, password }) = &self.login {
            config.set("sasl.mechanisms", mechanism.name());
            config.set("sasl.username", user);
            config.set("sasl.password", password);
        }
    }
}

/// An error of a client that nobody waits for. To callers a refused login or certificate looks like
/// a broker that does not answer, so it is said here.
pub(super) fn tell(error: &KafkaError, reason: &str) {
    match error.rdkafka_error_code() {
        Some(
            RDKafkaErrorCode::Authentication
            | RDKafkaErrorCode::SaslAuthenticationFailed
            | RDKafkaErrorCode::SSL,
        ) => tracing::error!(
            %error,
            reason,
            "the log's broker and this instance do not trust each other: look at log.tls, \
             log.tls_ca, log.sasl, log.sasl_user and log.sasl_password"
        ),
        _ => tracing::debug!(%error, reason, "the log's client"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_shown_without_its_password() {
        let (mechanism, user) = (SaslMechanism::Plain, "someone".to_owned());
        let login = KafkaLogin { mechanism, user, password: "secret".to_owned() };
        let shown = format!("{login:?}");
        assert!(shown.contains("someone") && !shown.contains("secret"), "{shown}");
    }
}
