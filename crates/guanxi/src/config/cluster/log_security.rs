//! Settings of TLS and logins towards Kafka.

use guanxi_cluster::kafka::{BUILT_WITH_TLS, KafkaLogin, KafkaSecurity, KafkaTls, SaslMechanism};

use crate::config::mode::wrong;
use crate::config::{ConfigError, LogSasl, LogSection, TlsUse};

impl LogSection {
    /// What the driver is told.
    pub fn security(&self) -> KafkaSecurity {
        let ca = Some(self.tls_ca.clone()).filter(|ca| !ca.is_empty());
        let mechanism = match self.sasl {
            LogSasl::Off => None,
            LogSasl::Plain => Some(SaslMechanism::Plain),
            LogSasl::ScramSha256 => Some(SaslMechanism::ScramSha256),
            LogSasl::ScramSha512 => Some(SaslMechanism::ScramSha512),
        };
        KafkaSecurity {
            tls: (self.tls == TlsUse::Required).then_some(KafkaTls { ca }),
            login: mechanism.map(|mechanism| KafkaLogin {
                mechanism,
                user: self.sasl_user.clone(),
                password: self.sasl_password.as_str().to_owned(),
            }),
        }
    }

    pub(super) fn check_security(&self) -> Result<(), ConfigError> {
        let (tls, sasl) = (self.tls == TlsUse::Required, self.sasl != LogSasl::Off);
        let named = |setting: &str, message: &str| Err(wrong(setting, message.to_owned()));
        if !tls && !self.tls_ca.is_empty() {
            return named("log.tls_ca", "it vouches for nobody while log.tls is \"off\"");
        }
        if sasl && (self.sasl_user.is_empty() || self.sasl_password.as_str().is_empty()) {
            return named("log.sasl", "a login needs log.sasl_user and log.sasl_password");
        }
        let named_someone = !self.sasl_user.is_empty() || !self.sasl_password.as_str().is_empty();
        if !sasl && named_someone {
            return named(
                "log.sasl",
                "there is a user or a password, and no way to log in: set \
                                      log.sasl to plain, scram-sha-256 or scram-sha-512",
            );
        }
        if self.sasl == LogSasl::Plain && !tls {
            return named(
                "log.sasl",
                "plain would send the password readable to all: set \
                                      log.tls = \"required\", or use scram-sha-512",
            );
        }
        if (tls || sasl) && !BUILT_WITH_TLS {
            let setting = if tls { "log.tls" } else { "log.sasl" };
            return named(
                setting,
                "this program was built without TLS and logins for Kafka: build \
                                   it with --features kafka-tls, or take the container's",
            );
        }
        if let Some(error) = self.security().tls.and_then(|tls| std::fs::File::open(tls.ca?).err())
        {
            return named("log.tls_ca", &format!("{}: {error}", self.tls_ca));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const CLUSTER: &str = "mode = \"cluster\"\n[store]\nurl = \"mysql://u@h:1/d\"\n\
                           [log]\nbrokers = \"h:2\"\n";
    const LOGIN: &str = "sasl_user = \"u\"\nsasl_password = \"secret\"\n";

    fn check(lines: &str) -> Result<(), String> {
        let config = parse(&format!("{CLUSTER}{lines}"), "file").unwrap();
        assert!(!format!("{config:?}").contains("secret"));
        config.check().map_err(|error| error.to_string())
    }

    #[test]
    fn half_a_login_and_a_lonely_certificate_are_refused() {
        for (lines, part) in [
            ("tls_ca = \"/ca.pem\"\n".to_owned(), "log.tls_ca: it vouches for nobody"),
            ("sasl = \"scram-sha-512\"\n".to_owned(), "log.sasl: a login needs"),
            (LOGIN.to_owned(), "log.sasl: there is a user"),
            (format!("sasl = \"plain\"\n{LOGIN}"), "log.sasl: plain would send"),
        ] {
            let error = check(&lines).unwrap_err();
            assert!(error.starts_with(part) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn what_was_not_built_is_said_and_not_left_out() {
        let tls = check("tls = \"required\"\n");
        let login = check(&format!("sasl = \"scram-sha-256\"\n{LOGIN}"));
        let (config, ca) = (format!("tls = \"required\"\nsasl = \"plain\"\n{LOGIN}"), "/no/ca.pem");
        let lost = check(&format!("{config}tls_ca = \"{ca}\"\n")).unwrap_err();
        if BUILT_WITH_TLS {
            assert_eq!((tls, login), (Ok(()), Ok(())));
            assert!(lost.starts_with("log.tls_ca: /no/ca.pem"), "{lost}");
        } else {
            for error in [tls.unwrap_err(), login.unwrap_err(), lost] {
                assert!(error.contains("built without TLS"), "{error}");
            }
        }
    }

    #[test]
    fn a_login_is_what_the_settings_say() {
        let text = format!("{CLUSTER}tls = \"required\"\nsasl = \"scram-sha-512\"\n{LOGIN}");
        let security = parse(&text, "file").unwrap().log.security();
        assert_eq!(security.tls, Some(KafkaTls { ca: None }));
        let login = security.login.unwrap();
        assert_eq!(login.mechanism, SaslMechanism::ScramSha512);
        assert_eq!((login.user.as_str(), login.password.as_str()), ("u", "secret"));
        assert_eq!(parse(CLUSTER, "file").unwrap().log.security(), KafkaSecurity::default());
    }
}
