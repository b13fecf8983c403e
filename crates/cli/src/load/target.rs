//! Where load goes: `http://HOST[:PORT]/PATH` or `memcached://HOST[:PORT]/?keys=N…`.

use super::memcached::Workload;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// A URL as far as load needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    host: String,
    port: u16,
    /// What is spoken there.
    pub service: Service,
    /// As it was given.
    pub url: String,
}

/// What is spoken with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// HTTP/1.1.
    Http(Http),
    /// memcached's text protocol.
    Memcached(Workload),
}

/// A resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// Host as written, for the Host field.
    authority: String,
    /// Path and query.
    path: String,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(url: &str) -> Result<Target, String> {
        let (memcached, rest) = match url.split_once("://") {
            None => (false, url),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("memcached") => (true, rest),
            Some((scheme, _)) => {
                return Err(format!("the scheme is {scheme}, only http and memcached are spoken here"));
            }
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let path = path.split('#').next().unwrap_or_default();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        if url.bytes().any(|byte| byte <= b' ' || byte == 0x7f) || authority.contains('@') {
            return Err("a URL has no spaces or control characters, a host no user name".to_owned());
        }
        // Without its brackets nobody can tell an IPv6 address from a port.
        let bare = || format!("{authority:?} is no host: an IPv6 address stands in brackets, as in http://[fd99::2]/");
        let (host, port) = match authority.strip_prefix('[') {
            Some(inner) => {
                let (host, rest) = inner.split_once(']').ok_or_else(bare)?;
                host.parse::<Ipv6Addr>().map_err(|_| bare())?;
                (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(bare)?) })
            }
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        if port.is_some_and(|port| port.contains(':')) {
            return Err(bare());
        }
        let port = match port {
            None if memcached => 11_211,
            None => 80,
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or(format!("{port:?} is no port"))?,
        };
        if host.is_empty() {
            return Err("the host is missing, as in http://10.99.0.2/".to_owned());
        }
        let service = match memcached {
            true => Service::Memcached(workload(&path)?),
            false => Service::Http(Http { authority: authority.to_owned(), path }),
        };
        Ok(Target { host: host.to_owned(), port, service, url: url.to_owned() })
    }
}

/// What stands behind the host of a `memcached://`.
fn workload(path: &str) -> Result<Workload, String> {
    let mut workload = Workload::default();
    let query = match path {
        "/" => "",
        _ => path.strip_prefix("/?").ok_or_else(|| format!("{path:?}: a memcached has no paths"))?,
    };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is no NAME=NUMBER"))?;
        workload.set(name, value)?;
    }
    match workload.gets + workload.sets {
        0 => Err("gets=0 and sets=0 ask for nothing".to_owned()),
        _ => Ok(workload),
    }
}

impl Target {
    /// The address to connect to; names are asked of the system.
    pub fn resolve(&self) -> Result<SocketAddr, String> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(address, self.port));
        }
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let mut found = found.map_err(|_| format!("{} has no address", self.host))?;
        found.next().ok_or_else(|| format!("{} has no address", self.host))
    }
}

impl Http {
    /// What a server at this address has under a path.
    pub fn at(address: SocketAddr, path: &str) -> Http {
        Http { authority: address.to_string(), path: path.to_owned() }
    }

    /// The request for it: keeping the connection, or asking for its end.
    pub fn request(&self, keep: bool) -> Vec<u8> {
        let connection = if keep { "keep-alive" } else { "close" };
        format!("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: {connection}\r\n\r\n", self.path, self.authority)
            .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let parsed = |url: &str| url.parse::<Target>();
        let http = |url: &str| match parsed(url) {
            Ok(Target { host, port, service: Service::Http(Http { authority, path }), .. }) => {
                Some((authority, host, port, path))
            }
            _ => None,
        };
        let all = |a: &str, h: &str, port, p: &str| Some((a.to_owned(), h.to_owned(), port, p.to_owned()));
        assert_eq!(http("http://10.0.0.1/a?b#c"), all("10.0.0.1", "10.0.0.1", 80, "/a?b"));
        assert_eq!(http("10.0.0.1:8080"), all("10.0.0.1:8080", "10.0.0.1", 8080, "/"));
        assert_eq!(http("HTTP://[fd99::2]:81?q"), all("[fd99::2]:81", "fd99::2", 81, "/?q"));
        let memcached = |url: &str| match parsed(url) {
            Ok(Target { port, service: Service::Memcached(workload), .. }) => Some((port, workload)),
            _ => None,
        };
        assert_eq!(memcached("memcached://10.0.0.1"), Some((11_211, Workload::default())));
        let workload = Workload { keys: 7, key_bytes: 9, value_bytes: 0, gets: 1, sets: 0 };
        assert_eq!(memcached("memcached://[::1]:9/?keys=7&key=9&value=0&gets=1&sets=0"), Some((9, workload)));
        for url in [
            "https://a/",
            "http:///a",
            "http://a:b/",
            "http://a:0/",
            "http://a/b c",
            "http://u@a/",
            "http://fd99::2/",
            "[fd99::2",
            "[a]/",
            "[::1]9",
            "a b",
            "memcached://a/b",
            "memcached://a/?keys",
            "memcached://a/?keys=0",
            "memcached://a/?key=8",
            "memcached://a/?value=-1",
            "memcached://a/?gets=0&sets=0",
            "memcached://a/?ttl=1",
        ] {
            assert!(parsed(url).is_err(), "{url}");
        }
        let target: Target = "[::1]:9/x".parse().expect("a target");
        let address = "[::1]:9".parse().expect("an address");
        assert_eq!(target.resolve(), Ok(address));
        assert_eq!(
            Http::at(address, "/x").request(false),
            b"GET /x HTTP/1.1\r\nHost: [::1]:9\r\nConnection: close\r\n\r\n"
        );
    }
}
