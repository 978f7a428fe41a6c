//! Keeps other people's web pages out. A browser sends what any page asks it to: a page could write
//! to a service that only its own machine reaches, and, under a name that leads to us, read from it.
//! Such a request is told from a program's by the name that it calls us by, by the origin that its
//! browser says it comes from, and by what a page may not send before it has asked for permission,
//! which nobody gets here: no answer has a CORS header.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Version, header};
use guanxi_model::{Code, Error};

use crate::config::HttpSection;

/// Names a service that anybody may call by any name.
const ANY_NAME: &str = "*";
/// Content types that a page may send to anybody without asking.
const UNASKED_TYPES: [&str; 3] =
    ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"];
/// Whence a browser says that a request comes when it is a page of ours or its user.
const OWN_SITES: [&str; 2] = ["same-origin", "none"];
/// How much of a wrong name an error repeats.
const SHOWN_CHARS_MAX: usize = 100;

/// What the service is called.
#[derive(Debug)]
pub struct OwnNames {
    names: Vec<String>,
    listens_on: IpAddr,
}

impl OwnNames {
    pub fn of(settings: &HttpSection) -> OwnNames {
        OwnNames { names: settings.names.clone(), listens_on: settings.listen.ip() }
    }

    /// Refuses a request that means somebody else, or that a page of another origin makes.
    pub fn admit(&self, request: &Request) -> Result<(), Error> {
        let headers = request.headers();
        let host = host(request)?;
        for name in request.uri().authority().map(|name| name.as_str()).into_iter().chain(host) {
            if !self.is_own(name) {
                let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
                return Err(Error::new(
                    Code::Forbidden,
                    format!(
                        "'{shown}' is no name of this service; call it by the address that it \
                         listens on, or give it the name with the setting http.names"
                    ),
                ));
            }
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let mut sites = headers.get_all("sec-fetch-site").iter();
        let is_own = |origin: &[u8]| host.is_some_and(|host| self.is_own_origin(origin, host));
        let own = origins.all(|origin| is_own(origin.as_bytes()))
            && sites.all(|site| OWN_SITES.iter().any(|own| site == own));
        match own {
            true => Ok(()),
            false => Err(Error::new(
                Code::Forbidden,
                "a web page of another origin may not call this service; call it from a program, \
                 or through a server of your own",
            )),
        }
    }

    /// Loopback or a given name; with any port, as ports are forwarded. Where others than this
    /// machine are listened to, any address: it may have been translated on the way, and only under
    /// a name can somebody else's page lead to us.
    fn is_own(&self, name: &str) -> bool {
        let Some(name) = without_port(name) else {
            return false;
        };
        if self.is_given(name) {
            return true;
        }
        match name.parse::<IpAddr>().map(|address| address.to_canonical()) {
            Ok(address) => address.is_loopback() || !self.listens_on.is_loopback(),
            Err(_) => without_root(name).eq_ignore_ascii_case("localhost"),
        }
    }

    fn is_given(&self, name: &str) -> bool {
        let name = without_root(name);
        self.names.iter().any(|own| own == ANY_NAME || without_root(own).eq_ignore_ascii_case(name))
    }

    /// An origin is a scheme and what its pages call us by. Only what stands before a service with
    /// a given name can have made its pages https.
    fn is_own_origin(&self, origin: &[u8], host: &str) -> bool {
        let Some((scheme, name)) =
            std::str::from_utf8(origin).ok().and_then(|origin| origin.split_once("://"))
        else {
            return false;
        };
        let secured = scheme.eq_ignore_ascii_case("https")
            && without_port(host).is_some_and(|host| self.is_given(host));
        (secured || scheme.eq_ignore_ascii_case("http")) && name.eq_ignore_ascii_case(host)
    }
}

/// What the request calls us: its one Host, or in HTTP/2 its authority. HTTP/1.0, which no browser
/// speaks, need not say.
fn host(request: &Request) -> Result<Option<&str>, Error> {
    let wrong = || Error::invalid("host: a request has one such header, which names this service");
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().map(Some).map_err(|_| wrong()),
        (Some(_), Some(_)) => Err(wrong()),
        (None, _) => match request.uri().authority() {
            Some(name) => Ok(Some(name.as_str())),
            None if request.version() <= Version::HTTP_10 => Ok(None),
            None => Err(wrong()),
        },
    }
}

/// A name without the dot that says that it is whole.
fn without_root(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// The name or address alone; none when it is neither.
fn without_port(authority: &str) -> Option<&str> {
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = port.strip_prefix(':').unwrap_or(port);
    (!name.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())).then_some(name)
}

/// Refuses a change that a page could send without asking. Other methods than POST it may not even
/// try; old browsers do not say where a POST comes from.
pub fn refuse_unasked(parts: &Parts) -> Result<(), Error> {
    if parts.method != Method::POST || says_its_type(&parts.headers) {
        return Ok(());
    }
    Err(Error::new(
        Code::UnsupportedMediaType,
        "a POST that changes something has, even without a body, a content type that no web page \
         may send unasked, such as content-type: application/json",
    ))
}

fn says_its_type(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter().peekable();
    types.peek().is_some()
        && types.all(|value| {
            let essence = value.to_str().unwrap_or("").split(';').next().unwrap_or("").trim();
            !essence.is_empty()
                && !UNASKED_TYPES.iter().any(|unasked| unasked.eq_ignore_ascii_case(essence))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_a_name_and_perhaps_a_port() {
        for (authority, name) in [
            ("localhost", Some("localhost")),
            ("localhost:7420", Some("localhost")),
            ("localhost:", Some("localhost")),
            ("[::1]:7420", Some("::1")),
            ("[::1]", Some("::1")),
            ("[::1", None),
            ("[::1]x", None),
            ("user@localhost:1", Some("user@localhost")),
            ("a:b:1", None),
            (":1", None),
            ("", None),
        ] {
            assert_eq!(without_port(authority), name, "{authority}");
        }
    }
}
