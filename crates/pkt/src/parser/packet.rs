//! Packets: `<` or `>`, what is known of IP, and a segment, a datagram or an ICMP message.

use super::{Parsed, Parser};
use crate::ast::{About, Body, Direction, Icmp, Ip, Packet, Tcp, TcpOption, Tos};
use crate::lexer::{SyntaxError, Token};
use crate::wire_options;

/// Most bytes that fit an IP packet behind headers and options.
const LARGEST: u16 = u16::MAX - 120;

impl Parser {
    pub(super) fn packet(&mut self) -> Parsed<Packet> {
        let direction = match self.next()? {
            Token::Sign('<') => Direction::In,
            _ => Direction::Out,
        };
        let encapsulation = self.encapsulation()?;
        let ip = self.ip()?;
        if ip.tos == Tos::Ect01 && direction == Direction::In {
            return self.wrong("expected `ect01` only on outbound packets");
        }
        let body = if self.word("icmp")? {
            Body::Icmp(self.icmp()?)
        } else if self.word("udp")? {
            let ports = self.ports()?;
            Body::Udp { ports, payload: self.in_parentheses()?.min(LARGEST) }
        } else {
            Body::Tcp(self.segment(direction)?)
        };
        Ok(Packet { direction, ip, encapsulation, body })
    }

    /// Headers around the packet. They are only recognised.
    fn encapsulation(&mut self) -> Parsed<Vec<&'static str>> {
        let mut around = Vec::new();
        loop {
            let name = match self.peek() {
                Token::Word(w) if w == "ipv4" => "ipv4",
                Token::Word(w) if w == "ipv6" => "ipv6",
                Token::Word(w) if w == "gre" || w == "GREv0" => "gre",
                Token::Word(w) if w == "mpls" => "mpls",
                _ => return Ok(around),
            };
            while !self.sign(':')? {
                match self.peek() {
                    Token::End => return self.expected("`:`"),
                    _ => self.next()?,
                };
            }
            around.push(name);
        }
    }

    fn ip(&mut self) -> Parsed<Ip> {
        let mut ip = Ip::default();
        let close = match (self.peek(), self.second()) {
            (Token::Sign('['), _) => ']',
            (Token::Sign('('), _) => ')',
            _ => return Ok(ip),
        };
        self.next()?;
        loop {
            let Token::Word(name) = self.next()? else { return self.expected("`ect0`, `tos`, `flowlabel` or `ttl`") };
            match name.as_str() {
                "noecn" => ip.tos = Tos::Ecn(0),
                "ect1" => ip.tos = Tos::Ecn(1),
                "ect0" => ip.tos = Tos::Ecn(2),
                "ce" => ip.tos = Tos::Ecn(3),
                "ect01" => ip.tos = Tos::Ect01,
                "tos" => ip.tos = Tos::Byte(self.number("a byte", 0xff)? as u8),
                "flowlabel" => ip.flow_label = Some(self.number("a flow label", 0xf_ffff)? as u32),
                "ttl" => ip.ttl = Some(self.number("a time to live", 0xff)? as u8),
                _ => return self.wrong(format!("expected `ect0`, `tos`, `flowlabel` or `ttl`, got `{name}`")),
            }
            if self.sign(close)? {
                return Ok(ip);
            }
            if !self.sign(',')? {
                return self.expected(&format!("`,` or `{close}`"));
            }
        }
    }

    fn ports(&mut self) -> Parsed<(u16, u16)> {
        if !matches!((self.peek(), self.second()), (Token::Int(_), Token::Sign('>'))) {
            return Ok((0, 0));
        }
        let source = self.number_u16("a port")?;
        self.must('>')?;
        Ok((source, self.number_u16("a port")?))
    }

    fn in_parentheses(&mut self) -> Parsed<u16> {
        self.must('(')?;
        let bytes = self.number_u16("a number of bytes")?;
        self.must(')')?;
        Ok(bytes)
    }

    fn segment(&mut self, direction: Direction) -> Parsed<Tcp> {
        let ports = self.ports()?;
        let (flags, ace) = self.flags()?;
        let (seq, payload) = self.seq()?;
        let ack = if self.word("ack")? { self.number_u32("an acknowledgment number")? } else { 0 };
        let window = if self.word("win")? { Some(self.number_u16("a window")?) } else { None };
        if window.is_none() && direction == Direction::In {
            return self.expected("`win` with the window of an inbound segment");
        }
        let urgent = if self.word("urg")? { self.number_u16("an urgent pointer")? } else { 0 };
        let options = self.tcp_options(direction)?;
        Ok(Tcp { ports, flags, ace, seq, payload, ack, window, urgent, options })
    }

    /// Letters in any order, `.` for ACK, a digit for the three bits of accurate ECN; `-` for none.
    fn flags(&mut self) -> Parsed<(u16, bool)> {
        if self.sign('-')? {
            return Ok((0, false));
        }
        let mut text = String::new();
        if let Token::Word(word) = self.peek().clone() {
            self.next()?;
            text = word;
        }
        match self.peek().clone() {
            Token::Sign('.') => {
                self.next()?;
                text.push('.');
            }
            Token::Float(tail) if tail.starts_with('.') => {
                self.next()?;
                text.push_str(&tail);
            }
            _ if text.is_empty() => return self.expected("flags of a segment, `icmp` or `udp`"),
            _ => {}
        }
        let (mut flags, mut ace, mut ecn) = (0u16, false, false);
        for c in text.chars() {
            let bit = match c {
                'F' => 0x001,
                'S' => 0x002,
                'R' => 0x004,
                'P' => 0x008,
                '.' => 0x010,
                'U' => 0x020,
                'E' => 0x040,
                'W' => 0x080,
                'A' => 0x100,
                '0'..='7' => (c as u16 - '0' as u16) << 6,
                _ => return self.wrong(format!("expected flags out of `FSRPUEWA.` or a digit up to 7, got `{c}`")),
            };
            (ace, ecn) = (ace | c.is_ascii_digit(), ecn | matches!(c, 'E' | 'W' | 'A'));
            if ace && ecn {
                return self.wrong("expected either a digit or some of `EWA`, not both");
            }
            flags |= bit;
        }
        Ok((flags, ace))
    }

    /// `start:end(bytes)`.
    fn seq(&mut self) -> Parsed<(u32, u16)> {
        let start = self.number_u32("a sequence number")?;
        self.must(':')?;
        let end = self.number_u32("the sequence number after the last byte")?;
        let place = self.place();
        let bytes = self.in_parentheses()?;
        if bytes > LARGEST {
            return Err(SyntaxError { place, message: format!("expected {LARGEST} bytes at most, got {bytes}") });
        }
        if end != start.wrapping_add(bytes as u32) {
            let message = format!("expected {} bytes from {start} to {end}, got {bytes}", end.wrapping_sub(start));
            return Err(SyntaxError { place, message });
        }
        Ok((start, bytes))
    }

    fn tcp_options(&mut self, direction: Direction) -> Parsed<Option<Vec<TcpOption>>> {
        let mut options = Vec::new();
        if *self.peek() != Token::Sign('<') {
            return Ok(Some(options));
        }
        let place = self.place();
        self.next()?;
        if *self.peek() == Token::Ellipsis {
            if direction == Direction::In {
                return self.wrong("expected `<...>` only on outbound segments");
            }
            self.next()?;
            self.must('>')?;
            return Ok(None);
        }
        loop {
            options.push(self.tcp_option()?);
            if self.sign('>')? {
                break;
            }
            if !self.sign(',')? {
                return self.expected("`,` or `>`");
            }
        }
        let bytes = wire_options::emit(&options).len();
        if bytes > 40 || !bytes.is_multiple_of(4) {
            let message = format!("expected options of 40 bytes at most, padded to a multiple of 4, got {bytes}");
            return Err(SyntaxError { place, message });
        }
        Ok(Some(options))
    }

    fn tcp_option(&mut self) -> Parsed<TcpOption> {
        const NAMES: &str =
            "a TCP option: `mss`, `nop`, `eol`, `wscale`, `sackOK`, `sack`, `TS`, `md5`, `FO`, `FOEXP`, `ECN`";
        let Token::Word(name) = self.peek().clone() else { return self.expected(NAMES) };
        let known = matches!(
            name.as_str(),
            "mss" | "nop" | "eol" | "wscale" | "sackOK" | "sack" | "TS" | "md5" | "FO" | "FOEXP" | "ECN"
        );
        if !known {
            return self.expected(NAMES);
        }
        self.next()?;
        Ok(match name.as_str() {
            "mss" => TcpOption::Mss(self.number_u16("a segment size")?),
            "nop" => TcpOption::Nop,
            "eol" => TcpOption::Eol,
            "wscale" => TcpOption::WindowScale(self.number("a shift count", 0xff)? as u8),
            "sackOK" => TcpOption::SackPermitted,
            "sack" => {
                let mut blocks = Vec::new();
                while blocks.is_empty() || matches!(self.peek(), Token::Int(_)) {
                    let left = self.number_u32("a left edge")?;
                    self.must(':')?;
                    blocks.push((left, self.number_u32("a right edge")?));
                }
                TcpOption::Sack(blocks)
            }
            "TS" => {
                if !self.word("val")? {
                    return self.expected("`val`");
                }
                let value = self.number_u32("a timestamp")?;
                if !self.word("ecr")? {
                    return self.expected("`ecr`");
                }
                TcpOption::Timestamps(value, self.number_u32("a timestamp")?)
            }
            "md5" => TcpOption::Md5(self.blob()?),
            "FO" | "FOEXP" => {
                let none = matches!(self.peek(), Token::Sign(',' | '>'));
                TcpOption::FastOpen(if none { Vec::new() } else { self.blob()? }, name == "FOEXP")
            }
            _ => self.accurate_ecn()?,
        })
    }

    /// Hexadecimal digits, two a byte.
    fn blob(&mut self) -> Parsed<Vec<u8>> {
        let text = match self.peek() {
            Token::Word(text) => text.clone(),
            Token::Int(n) => n.to_string(),
            _ => return self.expected("hexadecimal digits"),
        };
        let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
        let Some(digits) = digits.filter(|d| d.len() % 2 == 0) else {
            return self.expected("pairs of hexadecimal digits");
        };
        self.next()?;
        Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
    }

    /// `ECN e0b n ceb n e1b n` or with `e1b` first; the last ones may be missing.
    fn accurate_ecn(&mut self) -> Parsed<TcpOption> {
        let (kind, order) = match self.peek() {
            Token::Word(w) if w == "e0b" => (172, ["e0b", "ceb", "e1b"]),
            Token::Word(w) if w == "e1b" => (174, ["e1b", "ceb", "e0b"]),
            _ => return self.expected("`e0b` or `e1b`"),
        };
        let mut counters = Vec::new();
        for name in order {
            if !self.word(name)? {
                break;
            }
            counters.push(self.number("a counter", 0xff_ffff)? as u32);
        }
        Ok(TcpOption::AccEcn(kind, counters))
    }

    fn icmp(&mut self) -> Parsed<Icmp> {
        let Token::Word(kind) = self.next()? else { return self.expected("the type of the ICMP message") };
        let code = match self.peek().clone() {
            Token::Word(word) if word != "mtu" && word != "id" => {
                self.next()?;
                Some(word)
            }
            _ => None,
        };
        let mtu = if self.word("mtu")? { Some(self.number_u32("an MTU")?) } else { None };
        let id = if self.word("id")? { self.number_u16("an identifier")? } else { 0 };
        let mut about = About::Tcp(0, 0);
        if self.sign('[')? {
            about = if self.word("udp")? {
                About::Udp(self.in_parentheses()?.min(LARGEST))
            } else if self.word("raw")? {
                About::Raw(self.in_parentheses()?.min(LARGEST))
            } else {
                let (seq, bytes) = self.seq()?;
                About::Tcp(seq, bytes)
            };
            self.must(']')?;
        }
        Ok(Icmp { kind, code, mtu, id, about })
    }
}
