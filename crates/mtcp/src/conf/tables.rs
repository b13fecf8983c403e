//! mTCP's tables: `ROUTES n` with n lines of `ADDRESS/PREFIX DEVICE`, `ARP_ENTRY n` with n lines of `ADDRESS/PREFIX MAC`.

use std::net::{IpAddr, Ipv4Addr};

use runtime::config::{Cidr, Neighbor};

use super::Fault;
use super::old::cidr;

/// Most hosts that a line of the ARP table stands for: those of a /24.
const MOST: u32 = 256;

/// Where packets to an address go.
pub struct Route {
    /// Where they are to go.
    pub to: Cidr,
    /// An interface's name.
    pub device: String,
}

/// A line's number, from 1, and its two words.
type Line = (usize, [String; 2]);

/// The lines that follow `head n`, at most n of them; none where there is no such file.
fn lines(file: &str, head: &str) -> Result<Vec<Line>, Fault> {
    match super::read(file) {
        Ok(text) => parse(file, head, &text),
        Err(fault) if fault.errno == capi::Errno::NOENT => Ok(Vec::new()),
        Err(fault) => Err(fault),
    }
}

fn parse(file: &str, head: &str, text: &str) -> Result<Vec<Line>, Fault> {
    let mut left = None;
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let at = at + 1;
        let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
        match (words[..].as_ref(), left) {
            ([], _) => {}
            ([first, count], None) if *first == head => {
                let count: usize =
                    count.parse().map_err(|_| Fault::at(file, at, format!("{head} {count}: expected a number")))?;
                left = Some(count);
            }
            (_, None) => return Err(Fault::at(file, at, format!("expected {head} and a number before the entries"))),
            ([a, b], Some(n)) if n > 0 => {
                found.push((at, [(*a).to_owned(), (*b).to_owned()]));
                left = Some(n - 1);
            }
            (_, Some(0)) => return Err(Fault::at(file, at, format!("more entries than {head} says"))),
            _ => return Err(Fault::at(file, at, "expected ADDRESS/PREFIX and one word more")),
        }
    }
    Ok(found)
}

/// The routes of a file, with their lines.
pub fn routes(file: &str) -> Result<Vec<(usize, Route)>, Fault> {
    let route = |(at, [to, device]): Line| {
        let to = cidr(&to).map_err(|e| Fault::at(file, at, e))?;
        Ok((at, Route { to, device }))
    };
    lines(file, "ROUTES")?.into_iter().map(route).collect()
}

/// The hardware addresses of a file, with their lines, one for each host.
pub fn hardware(file: &str) -> Result<Vec<(usize, Neighbor)>, Fault> {
    let mut all = Vec::new();
    for (at, [hosts, mac]) in lines(file, "ARP_ENTRY")? {
        let hosts = cidr(&hosts).map_err(|e| Fault::at(file, at, e))?;
        for addr in hosts_of(hosts).map_err(|e| Fault::at(file, at, e))? {
            let neighbor = format!("{addr} {mac}").parse().map_err(|e: String| Fault::at(file, at, e))?;
            all.push((at, neighbor));
        }
    }
    Ok(all)
}

fn hosts_of(of: Cidr) -> Result<Vec<IpAddr>, String> {
    match of.addr {
        IpAddr::V4(addr) if of.prefix >= 24 => {
            let n = MOST >> (of.prefix - 24);
            let first = u32::from(addr) & !(n - 1);
            Ok((0..n).map(|i| IpAddr::V4(Ipv4Addr::from(first + i))).collect())
        }
        IpAddr::V6(_) if of.prefix == 128 => Ok(vec![of.addr]),
        _ => Err(format!("{}/{}: expected a prefix of 24 to 32", of.addr, of.prefix)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(text: &str) -> Result<Vec<(usize, String)>, String> {
        let all = parse("f", "ROUTES", text).map_err(|f| f.message)?;
        Ok(all.into_iter().map(|(at, [a, b])| (at, format!("{a}|{b}"))).collect())
    }

    #[test]
    fn entries_follow_their_number() {
        let text = "# a table\n\nROUTES 2\n10.0.0.1/24 eth0 # one\n\t10.0.1.1/24\teth1\n";
        assert_eq!(two(text).unwrap(), [(4, "10.0.0.1/24|eth0".into()), (5, "10.0.1.1/24|eth1".into())]);
        assert_eq!(two("").unwrap(), []);
        assert_eq!(two("ROUTES 1\na b\nc d\n").unwrap_err(), "f:3: more entries than ROUTES says");
        assert_eq!(two("a b\n").unwrap_err(), "f:1: expected ROUTES and a number before the entries");
        assert_eq!(two("ROUTES x\n").unwrap_err(), "f:1: ROUTES x: expected a number");
        assert_eq!(two("ROUTES 3\na\n").unwrap_err(), "f:2: expected ADDRESS/PREFIX and one word more");
    }

    #[test]
    fn a_prefix_stands_for_its_hosts() {
        let hosts = |text: &str| hosts_of(text.parse().unwrap());
        assert_eq!(hosts("10.0.0.7/32").unwrap(), ["10.0.0.7".parse::<IpAddr>().unwrap()]);
        let four = hosts("10.0.0.7/30").unwrap();
        assert_eq!((four.len(), four[0].to_string(), four[3].to_string()), (4, "10.0.0.4".into(), "10.0.0.7".into()));
        assert_eq!(hosts("10.0.0.7/24").unwrap().len(), 256);
        assert!(hosts("10.0.0.7/23").is_err() && hosts("fd00::/64").is_err());
    }
}
