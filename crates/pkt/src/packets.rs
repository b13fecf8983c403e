//! Packets of a script: those that come are made and injected, those that go are waited for and compared.

use wire::Instant;

use crate::ast::{About, Body, Direction, Icmp, Ip, Packet, Tcp, TcpOption, Tos};
use crate::conn::{Conn, Phase, pattern};
use crate::run::{Due, Runner, Stop};
use crate::segment::{self, Segment, Sent, SentBody, flag};
use crate::wire_options;

/// The first port of the other side when it opens a connection; each takes the next.
const FIRST_PORT: u16 = 40_000;
/// How much longer than its time a packet is waited for, µs.
const PATIENCE: u64 = 2_000_000;
/// The longest that a packet at `*` is waited for, µs.
const LONGEST: u64 = 24 * 3600 * 1_000_000;

impl Runner<'_> {
    /// An event with a packet.
    pub(crate) fn packet(&mut self, packet: &Packet, due: Due) -> Result<(), Stop> {
        if let Some(around) = packet.encapsulation.first() {
            return Err(Stop::unsupported(format!("{around} around a packet")));
        }
        if let Body::Tcp(Tcp { options: Some(options), .. }) = &packet.body
            && options.iter().any(|o| matches!(o, TcpOption::FastOpen(..)))
        {
            return Err(Stop::unsupported("Fast Open"));
        }
        let conn = self.conn_of(packet)?;
        match packet.direction {
            Direction::In => {
                self.wait_for(due)?;
                let bytes = self.inbound(conn, packet)?;
                if let Body::Tcp(tcp) = &packet.body {
                    self.note(self.now(), || show_script(tcp).replacen('>', "<", 1));
                }
                self.machine.inject(&bytes);
                self.retry()
            }
            Direction::Out => self.outbound(conn, packet, due),
        }
    }

    /// The connection that a script's packet belongs to. A segment that comes to a listener, or while there is no socket,
    /// opens one; a SYN that goes makes a connecting one known.
    fn conn_of(&mut self, packet: &Packet) -> Result<usize, Stop> {
        let current = self.under_test;
        let phase = current.map(|c| self.conns[c].phase);
        let Body::Tcp(tcp) = &packet.body else {
            return current.ok_or_else(|| Stop::fail("a socket before this packet", "none"));
        };
        match (packet.direction, phase) {
            (Direction::In, None | Some(Phase::Listening)) => {
                let mut conn = Conn::new(Phase::Called, None);
                conn.remote_isn = tcp.seq;
                conn.local_port = self.options.bind_port;
                conn.remote_port = FIRST_PORT.wrapping_add(self.conns.len() as u16);
                self.conns.push(conn);
                self.under_test = Some(self.conns.len() - 1);
            }
            (Direction::Out, Some(Phase::Connecting)) if tcp.flags & (flag::SYN | flag::ACK) == flag::SYN => {
                let conn = &mut self.conns[current.unwrap_or_default()];
                conn.phase = Phase::SynSent;
                conn.script_isn = tcp.seq;
            }
            _ => {}
        }
        self.under_test.ok_or_else(|| Stop::fail("a socket before this packet", "none"))
    }

    /// The bytes of a packet that comes.
    fn inbound(&mut self, conn: usize, packet: &Packet) -> Result<Vec<u8>, Stop> {
        let (local, remote) = (self.options.local(), self.options.remote());
        let (protocol, payload) = match &packet.body {
            Body::Udp { ports, payload } => {
                let c = &self.conns[conn];
                let or = |given: u16, known: u16| if given == 0 { known } else { given };
                let mut b = or(ports.0, c.remote_port).to_be_bytes().to_vec();
                b.extend(or(ports.1, c.local_port).to_be_bytes());
                b.extend((8 + payload).to_be_bytes());
                b.resize(8 + *payload as usize, 0);
                let sum = wire::checksum::pseudo(remote.into(), local.into(), 17, b.len())
                    .add(wire::checksum::sum(&b))
                    .finish();
                b[6..8].copy_from_slice(&sum.to_be_bytes());
                (17, b)
            }
            Body::Icmp(icmp) => self.message(&self.conns[conn], icmp)?,
            Body::Tcp(tcp) => (6, self.segment_in(conn, tcp)?),
        };
        Ok(segment::ip_packet(remote, local, protocol, packet.ip, &payload))
    }

    fn segment_in(&mut self, conn: usize, tcp: &Tcp) -> Result<Vec<u8>, Stop> {
        let scaled = self.options.ts_ecr_scaled;
        let (local, remote) = (self.options.local(), self.options.remote());
        let conn = &mut self.conns[conn];
        let (syn, ack) = (tcp.flags & flag::SYN != 0, tcp.flags & flag::ACK != 0);
        conn.urgent |= tcp.flags & flag::URG != 0;
        match conn.phase {
            Phase::Answered if ack => conn.phase = Phase::Established,
            Phase::SynSent if syn => {
                conn.remote_isn = tcp.seq;
                if ack {
                    conn.phase = Phase::SynAcked;
                }
            }
            _ => {}
        }
        if self.options.mss.is_some_and(|mss| tcp.payload > mss) {
            return Err(Stop::unsupported("segments joined by a network card (GRO)"));
        }
        let or = |given: u16, known: u16| if given == 0 { known } else { given };
        let mut segment = Segment {
            ports: (or(tcp.ports.0, conn.remote_port), or(tcp.ports.1, conn.local_port)),
            seq: tcp.seq,
            ack: tcp.ack,
            flags: tcp.flags,
            reserved: 0,
            window: tcp.window.unwrap_or_default(),
            urgent: tcp.urgent,
            options: tcp.options.clone().unwrap_or_default(),
            payload: tcp.payload as usize,
        };
        segment.shift(conn.remote_offset(syn), conn.local_offset(syn));
        for option in &mut segment.options {
            if let TcpOption::Timestamps(_, echo) = option
                && ack
            {
                *echo = conn.live_timestamp(*echo, scaled).ok_or_else(|| {
                    Stop::fail("an echo of a timestamp that the stack has sent", format!("ecr {echo}"))
                })?;
            }
        }
        // The text of a SYN begins behind the SYN's own number; other numbers are relative already.
        let first = if syn { tcp.seq.wrapping_sub(conn.remote_isn).wrapping_add(1) } else { tcp.seq };
        Ok(segment.emit(remote, local, (first..).map(pattern)))
    }

    /// An ICMP message about something that the stack has sent.
    fn message(&self, conn: &Conn, icmp: &Icmp) -> Result<(u8, Vec<u8>), Stop> {
        let (local, remote) = (self.options.local(), self.options.remote());
        let (kind, code) = icmp_numbers(icmp, self.options.v6())?;
        let quoted = |protocol: u8, words: [u32; 2], payload: u16| {
            let header = if protocol == 6 { 20 } else { 8 };
            let whole = vec![0; header + payload as usize];
            let mut packet = segment::ip_packet(local, remote, protocol, Ip::default(), &whole);
            let ip = packet.len() - whole.len();
            packet.truncate(ip);
            packet.extend(words.into_iter().flat_map(u32::to_be_bytes));
            packet
        };
        let ports = (conn.local_port as u32) << 16 | conn.remote_port as u32;
        let about = match icmp.about {
            About::Tcp(seq, bytes) => quoted(6, [ports, seq.wrapping_add(conn.local_offset(false))], bytes),
            About::Udp(bytes) => quoted(17, [ports, (8 + bytes as u32) << 16], bytes),
            About::Raw(bytes) => vec![0; (bytes as usize).saturating_sub(8)],
        };
        let word = icmp.mtu.unwrap_or((icmp.id as u32) << 16);
        Ok(segment::icmp(remote, local, kind, code, word, &about))
    }

    /// Waits for what the script expects and compares it.
    fn outbound(&mut self, conn: usize, packet: &Packet, due: Due) -> Result<(), Stop> {
        let tcp = match &packet.body {
            Body::Tcp(tcp) => tcp,
            Body::Icmp(icmp) => return self.message_out(icmp, due),
            Body::Udp { .. } => return Err(Stop::unsupported("UDP from the stack")),
        };
        let mut whole: Option<(Sent, Segment, Vec<u8>)> = None;
        loop {
            let script = || show_script(tcp);
            let (sent, mut live, data) = self.next_segment(conn, due, &script)?;
            let c = &mut self.conns[conn];
            if c.phase == Phase::Called && tcp.flags & (flag::SYN | flag::ACK) == flag::SYN | flag::ACK {
                c.phase = Phase::Answered;
                (c.script_isn, c.live_isn) = (tcp.seq, live.seq);
            }
            c.to_script(&mut live);
            self.note(sent.at, || live.show(Direction::Out));
            let (mut seq, mut cwr, mut gathered) = (live.seq, live.flags & flag::CWR, Vec::new());
            if let Some((_, before, all)) = whole.take() {
                continues(&before, &live, tcp.payload as usize - all.len()).map_err(|what| {
                    let got = format!("{} after {}", live.show(Direction::Out), before.show(Direction::Out));
                    Stop::fail(format!("{} in segments alike ({what})", script()), got)
                })?;
                (seq, cwr, gathered) = (live.seq.wrapping_sub(all.len() as u32), before.flags & flag::CWR, all);
            }
            gathered.extend(data);
            let enough = gathered.len() >= tcp.payload as usize || self.options.strict_segments;
            if enough {
                live.flags = live.flags & !flag::CWR | cwr;
                (live.seq, live.payload) = (seq, gathered.len());
                return self.compare(conn, packet, tcp, due, sent, live, &gathered);
            }
            live.flags = live.flags & !flag::CWR | cwr;
            whole = Some((sent, live, gathered));
        }
    }

    /// The next segment of the connection; packets of nobody that the script knows are passed over.
    fn next_segment(
        &mut self,
        conn: usize,
        due: Due,
        script: &dyn Fn() -> String,
    ) -> Result<(Sent, Segment, Vec<u8>), Stop> {
        loop {
            let sent = self.next_sent(due, script)?;
            let c = &mut self.conns[conn];
            let SentBody::Segment(segment, data) = sent.body.clone() else { continue };
            if sent.to != self.options.remote() {
                continue;
            }
            let opens = c.phase == Phase::SynSent && c.local_port == 0 && segment.ports.1 == c.remote_port;
            if opens && segment.flags & (flag::SYN | flag::ACK) == flag::SYN {
                (c.local_port, c.live_isn) = (segment.ports.0, segment.seq);
            }
            if segment.ports == (c.local_port, c.remote_port) {
                return Ok((sent, segment, data));
            }
        }
    }

    /// The next packet that the stack sends, if it does in time.
    fn next_sent(&mut self, due: Due, script: &dyn Fn() -> String) -> Result<Sent, Stop> {
        let limit = match due.latest() {
            Some(latest) => latest + PATIENCE.max(self.options.tolerance(latest.saturating_sub(due.last))),
            None => self.now() + LONGEST,
        };
        loop {
            if let Some((at, bytes)) = self.machine.pop() {
                let at = self.script_time(at);
                return Sent::parse(at, &bytes).map_err(|what| Stop::fail(script(), what));
            }
            let until = self.now();
            if !self.step(limit)? {
                let got = format!("nothing by {:.6}", until.max(limit.min(self.now())) as f64 / 1e6);
                return Err(Stop::fail(script(), got));
            }
        }
    }

    fn message_out(&mut self, icmp: &Icmp, due: Due) -> Result<(), Stop> {
        let expected = icmp_numbers(icmp, self.options.v6())?;
        let script = || format!("> icmp type {} code {}", expected.0, expected.1);
        loop {
            let sent = self.next_sent(due, &script)?;
            if let SentBody::Icmp(kind, code) = sent.body {
                if (kind, code) != expected {
                    return Err(Stop::fail(script(), format!("> icmp type {kind} code {code}")));
                }
                return self.on_time(due, sent.at, "outbound packet");
            }
        }
    }

    /// Compares a segment, in the script's numbers, with what the script says.
    #[allow(clippy::too_many_arguments)]
    fn compare(
        &mut self,
        conn: usize,
        packet: &Packet,
        tcp: &Tcp,
        due: Due,
        sent: Sent,
        mut live: Segment,
        data: &[u8],
    ) -> Result<(), Stop> {
        let options = self.options.clone();
        let c = &mut self.conns[conn];
        let script_timestamps = tcp.options.as_ref().and_then(|list| {
            list.iter().find_map(|o| if let TcpOption::Timestamps(v, e) = o { Some((*v, *e)) } else { None })
        });
        if let (Some((script, _)), Some((value, _))) = (script_timestamps, live.timestamps()) {
            c.note_timestamp(script, value);
        }
        for option in &mut live.options {
            if let TcpOption::Timestamps(value, _) = option {
                *value = c.script_timestamp(*value);
            }
        }
        let mut wrong = Vec::new();
        let mut check = |name: &str, expected: u32, got: u32| {
            if expected != got {
                wrong.push(format!("{name} {expected} not {got}"));
            }
        };
        let names = [
            ("FIN", flag::FIN),
            ("SYN", flag::SYN),
            ("RST", flag::RST),
            ("PSH", flag::PSH),
            ("ACK", flag::ACK),
            ("URG", flag::URG),
            ("ECE", flag::ECE),
            ("CWR", flag::CWR),
            ("AE", flag::AE),
        ];
        for (name, bit) in names {
            check(name, (tcp.flags & bit != 0) as u32, (live.flags & bit != 0) as u32);
        }
        check("reserved", 0, live.reserved as u32);
        check("seq", tcp.seq, live.seq);
        check("bytes", tcp.payload as u32, live.payload as u32);
        check("ack", tcp.ack, live.ack);
        if let Some(window) = tcp.window {
            check("win", window as u32, live.window as u32);
        }
        check("urg", tcp.urgent as u32, live.urgent as u32);
        match packet.ip.tos {
            Tos::Unsaid => {}
            Tos::Ecn(bits) => check("ecn", bits as u32, sent.tos as u32 & 3),
            Tos::Ect01 if matches!(sent.tos & 3, 1 | 2) => {}
            Tos::Ect01 => check("ecn", 2, sent.tos as u32 & 3),
            Tos::Byte(tos) => check("tos", tos as u32, sent.tos as u32),
        }
        if let Some(ttl) = packet.ip.ttl {
            check("ttl", ttl as u32, sent.ttl as u32);
        }
        if let (Some(label), true) = (packet.ip.flow_label, options.v6()) {
            let same = match c.flow_label.replace((label, sent.flow_label)) {
                Some((script, live)) => (script == label) == (live == sent.flow_label),
                None => sent.flow_label != 0,
            };
            check("flowlabel", 1, same as u32);
        }
        if let Some(expected) = &tcp.options {
            // How far the stack's clock may be from the script's since the start, in ticks.
            let slack = options.tolerance(due.latest().unwrap_or(sent.at)).checked_div(options.ts_tick_usecs);
            if !same_options(expected, &live.options, slack, options.exact) {
                wrong.push(format!("<{}> not <{}>", wire_options::show(expected), wire_options::show(&live.options)));
            }
        }
        let place = |i: usize| tcp.seq.wrapping_add(i as u32);
        if let Some(i) = (0..data.len()).find(|i| data[*i] != pattern(place(*i))) {
            wrong.push(format!("the bytes written, not others from {} on", place(i)));
        }
        if !wrong.is_empty() {
            let expected = format!("{} ({})", show_script(tcp), wrong.join(", "));
            return Err(Stop::fail(expected, live.show(Direction::Out)));
        }
        self.on_time(due, sent.at, "outbound packet").map_err(|stop| stop.about(&live.show(Direction::Out)))
    }

    /// What the stack has sent of the connection under test and the script has not asked for.
    pub(crate) fn left_over(&mut self) -> Option<String> {
        let conn = self.conns.get(self.under_test?)?.clone();
        while let Some((at, bytes)) = self.machine.pop() {
            let sent = match Sent::parse(self.script_time(at), &bytes) {
                Ok(sent) => sent,
                Err(what) => return Some(what),
            };
            if let SentBody::Segment(mut segment, _) = sent.body
                && segment.ports == (conn.local_port, conn.remote_port)
            {
                conn.to_script(&mut segment);
                return Some(format!("{} at {:.6}", segment.show(Direction::Out), sent.at as f64 / 1e6));
            }
        }
        None
    }

    /// Microseconds since the script's start.
    pub(crate) fn script_time(&self, at: Instant) -> u64 {
        at.micros_since(self.start)
    }
}

/// Whether `live` goes on where `before` ended and is alike; `missing` bytes are still expected.
fn continues(before: &Segment, live: &Segment, missing: usize) -> Result<(), &'static str> {
    const ALIKE: u16 = flag::SYN | flag::RST | flag::ACK | flag::URG | flag::ECE | flag::AE;
    match () {
        _ if live.flags & ALIKE != before.flags & ALIKE => Err("flags"),
        _ if live.seq != before.seq.wrapping_add(before.payload as u32) => Err("sequence"),
        _ if (live.ack, live.window, live.urgent) != (before.ack, before.window, before.urgent) => {
            Err("ack and window")
        }
        _ if wire_options::emit(&live.options).len() != wire_options::emit(&before.options).len() => Err("options"),
        _ if live.payload == 0 => Err("data"),
        _ if live.payload < missing && live.payload != before.payload => Err("sizes"),
        _ => Ok(()),
    }
}

/// Whether options are the same in the same order. Timestamps are compared when a tick is known, within `slack` ticks; their
/// echoes when it must be `exact`.
fn same_options(expected: &[TcpOption], got: &[TcpOption], slack: Option<u64>, exact: bool) -> bool {
    let same = |pair: (&TcpOption, &TcpOption)| match pair {
        (TcpOption::Timestamps(value, echo), TcpOption::Timestamps(got, got_echo)) => {
            let apart = (got.wrapping_sub(*value) as i32).unsigned_abs() as u64;
            slack.is_none_or(|s| apart <= s) && (!exact || echo == got_echo)
        }
        (a, b) => a == b,
    };
    expected.len() == got.len() && expected.iter().zip(got).all(same)
}

fn show_script(tcp: &Tcp) -> String {
    let segment = Segment {
        ports: tcp.ports,
        seq: tcp.seq,
        ack: tcp.ack,
        flags: tcp.flags,
        reserved: 0,
        window: tcp.window.unwrap_or_default(),
        urgent: tcp.urgent,
        options: tcp.options.clone().unwrap_or_default(),
        payload: tcp.payload as usize,
    };
    let shown = segment.show(Direction::Out);
    let shown = if tcp.window.is_none() { shown.replacen(" win 0", "", 1) } else { shown };
    if tcp.options.is_none() { format!("{shown} <...>") } else { shown }
}

/// Type and code of a message by their names.
fn icmp_numbers(icmp: &Icmp, v6: bool) -> Result<(u8, u8), Stop> {
    let v4_codes = [
        "net_unreachable",
        "host_unreachable",
        "protocol_unreachable",
        "port_unreachable",
        "frag_needed",
        "source_route_failed",
        "net_unknown",
        "host_unknown",
        "source_host_isolated",
        "net_prohibited",
        "host_prohibited",
        "net_unreachable_for_tos",
        "host_unreachable_for_tos",
        "packet_filtered",
        "precedence_violation",
        "precedence_cutoff",
    ];
    let v6_codes = ["no_route", "admin_prohibited", "not_neighbour", "address_unreachable", "port_unreachable"];
    let own = |text: &str, prefix: &str| text.strip_prefix(prefix).and_then(|n| n.parse::<u8>().ok());
    let kind = match (icmp.kind.as_str(), v6) {
        ("unreachable", false) => 3,
        ("source_quench", false) => 4,
        ("redirect", false) => 5,
        ("echo_reply", false) => 0,
        ("echo_request", false) => 8,
        ("time_exceeded", false) => 11,
        ("parameter_problem", false) => 12,
        ("unreachable", true) => 1,
        ("packet_too_big", true) => 2,
        ("time_exceeded", true) => 3,
        ("parameter_problem", true) => 4,
        ("echo_request", true) => 128,
        ("echo_reply", true) => 129,
        (other, _) => own(other, "type_").ok_or_else(|| Stop::fail("a type of ICMP message", other))?,
    };
    let Some(name) = icmp.code.as_deref() else { return Ok((kind, 0)) };
    let at = |names: &[&str]| names.iter().position(|n| *n == name).map(|at| at as u8);
    let code = match (kind, v6) {
        _ if name.starts_with("code_") => own(name, "code_"),
        (3, false) => at(&v4_codes),
        (1, true) if name == "net_unreachable" => Some(0),
        (1, true) => at(&v6_codes),
        (3, true) => at(&["exceeded_hop_limit", "exceeded_frag_time"]),
        (4, true) => at(&["header_field", "unknown_next_header", "unknown_option"]),
        _ => None,
    };
    code.map(|code| (kind, code)).ok_or_else(|| Stop::fail(format!("a code of `{}`", icmp.kind), name))
}
