//! Where load goes: `http://HOST[:PORT]/PATH`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// A URL as far as load needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Host as written, for the Host field.
    pub authority: String,
    host: String,
    port: u16,
    /// Path and query.
    pub path: String,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(url: &str) -> Result<Target, String> {
        let rest = match url.split_once("://") {
            None => url,
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) => return Err(format!("the scheme is {scheme}, only http is spoken here")),
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
            None => 80,
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or(format!("{port:?} is no port"))?,
        };
        if host.is_empty() {
            return Err("the host is missing, as in http://10.99.0.2/".to_owned());
        }
        Ok(Target { authority: authority.to_owned(), host: host.to_owned(), port, path })
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
        let target = |url: &str| url.parse::<Target>().map(|t| (t.authority, t.host, t.port, t.path));
        let all = |a: &str, h: &str, port, p: &str| Ok((a.to_owned(), h.to_owned(), port, p.to_owned()));
        assert_eq!(target("http://10.0.0.1/a?b#c"), all("10.0.0.1", "10.0.0.1", 80, "/a?b"));
        assert_eq!(target("10.0.0.1:8080"), all("10.0.0.1:8080", "10.0.0.1", 8080, "/"));
        assert_eq!(target("HTTP://[fd99::2]:81?q"), all("[fd99::2]:81", "fd99::2", 81, "/?q"));
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
        ] {
            assert!(target(url).is_err(), "{url}");
        }
        let target: Target = "[::1]:9/x".parse().expect("a target");
        assert_eq!(target.resolve(), Ok("[::1]:9".parse().expect("an address")));
        assert_eq!(target.request(false), b"GET /x HTTP/1.1\r\nHost: [::1]:9\r\nConnection: close\r\n\r\n");
    }
}
