use super::*;
use crate::ast::*;
use proptest::prelude::*;

fn script(text: &str) -> Script {
    parse(text, &Defines::new()).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn event(text: &str) -> Event {
    script(&format!("0 `true`\n{text}")).events.remove(1)
}

fn error(text: &str) -> String {
    parse(text, &Defines::new()).unwrap_err().to_string()
}

#[test]
fn times() {
    let time = |text: &str| event(&format!("{text} > . 1:1(0) ack 1")).time;
    assert_eq!(time("1.5"), Time::At(1_500_000));
    assert_eq!(time("+.000001"), Time::After(1));
    assert_eq!(time("*"), Time::Any);
    assert_eq!(time("1~2"), Time::Between(1_000_000, 2_000_000));
    assert_eq!(time("+.3~+.4"), Time::AfterBetween(300_000, 400_000));
    assert!(error("0 `a`\n+2~+1 > . 1:1(0) ack 1").contains("2:5: error: expected the end of the range"));
    assert!(error("1 > . 1:1(0) ack 1").contains("first event at time 0"));
    assert!(error("0 `a`\n* < . 1:1(0) ack 1 win 5").contains("outbound"));
    assert!(error("0 `a`\n2 `b`\n1 `c`").contains("3:1: error: expected a time not before 2"));
}

#[test]
fn segments() {
    let segment = |text: &str| match event(text).action {
        Action::Packet(Packet { body: Body::Tcp(tcp), direction, ip, .. }) => (direction, ip, tcp),
        other => panic!("{other:?}"),
    };
    let (direction, ip, tcp) = segment("+0 < [ect0] SEW 5:5(0) win 10 <mss 9,sackOK,TS val 1 ecr 2,nop,wscale 3>");
    assert_eq!((direction, ip.tos), (Direction::In, Tos::Ecn(2)));
    assert_eq!((tcp.flags, tcp.seq, tcp.window), (0x0c2, 5, Some(10)));
    assert_eq!(tcp.options.unwrap().len(), 5);
    let (_, _, tcp) = segment("+0 > 80>90 FPU. 1:11(10) ack 7 urg 3 <...>");
    assert_eq!((tcp.ports, tcp.flags, tcp.payload, tcp.ack), ((80, 90), 0x039, 10, 7));
    assert_eq!((tcp.window, tcp.urgent, tcp.options), (None, 3, None));
    let (_, _, tcp) = segment("+0 > S.5 0:0(0) ack 1 <nop,nop,sack 1:2 3:4>");
    assert_eq!((tcp.flags, tcp.ace), (0x152, true));
    assert_eq!(segment("+0 < - 1:2(1) win 0").2.flags, 0);
    assert!(error("0 `a`\n+0 < . 1:5(3) ack 1 win 1").contains("2:11: error: expected 4 bytes from 1 to 5, got 3"));
    assert!(error("0 `a`\n+0 < . 1:1(0) ack 1").contains("`win`"));
    assert!(error("0 `a`\n+0 > Q 1:1(0)").contains("got `Q`"));
    assert!(error("0 `a`\n+0 > E.5 1:1(0)").contains("not both"));
    assert!(error("0 `a`\n+0 > . 1:1(0) <mss 1,nop>").contains("multiple of 4, got 5"));
    assert!(error("0 `a`\n+0 < . 1:1(0) win 70000").contains("from 0 to 65535"));
    assert!(error("0 `a`\n+0 < . 1:1(0) win 7 <...>").contains("outbound"));
}

#[test]
fn messages_and_datagrams() {
    let body = |text: &str| match event(text).action {
        Action::Packet(packet) => (packet.encapsulation, packet.body),
        other => panic!("{other:?}"),
    };
    let (_, icmp) = body("+0 < icmp unreachable frag_needed mtu 800 [1:1001(1000)]");
    let Body::Icmp(icmp) = icmp else { panic!("{icmp:?}") };
    assert_eq!((icmp.kind.as_str(), icmp.code.as_deref(), icmp.mtu), ("unreachable", Some("frag_needed"), Some(800)));
    assert_eq!(icmp.about, About::Tcp(1, 1000));
    assert_eq!(body("+0 > udp 7>8 (20)").1, Body::Udp { ports: (7, 8), payload: 20 });
    assert_eq!(body("+0 > ipv4 1.2.3.4 > 5.6.7.8: gre: udp (1)").0, ["ipv4", "gre"]);
}

#[test]
fn calls() {
    let call = |text: &str| match event(text).action {
        Action::Call(call) => call,
        other => panic!("{other:?}"),
    };
    let c = call("+0...0.2 accept(3, ..., ...) = -1 EAGAIN (Resource temporarily unavailable)");
    assert_eq!((c.end, c.errno.as_deref(), c.args.len()), (Some(200_000), Some("EAGAIN"), 3));
    let c = call("+0 poll([{fd=4, events=POLLIN|POLLOUT, revents=0}], 1, 0) = 0");
    let Expr::List(fds) = &c.args[0] else { panic!("{c:?}") };
    let Expr::Struct(fields) = &fds[0] else { panic!("{c:?}") };
    assert_eq!(fields.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["fd", "events", "revents"]);
    assert!(matches!(fields[1].value, Expr::Or(..)));
    let c = call("+0 sendmsg(4, {msg_name(...)=..., msg_iov(1)=[{..., 60}], msg_flags=0}, 0) = 60");
    let Expr::Struct(fields) = &c.args[1] else { panic!("{c:?}") };
    assert_eq!(fields[1].index, Some(Expr::Int(1)));
    assert!(matches!(&fields[1].value, Expr::List(l) if matches!(l[0], Expr::Tuple(_))));
    let c = call("+0 fcntl(3, F_GETFL) = 0x2 (flags O_RDWR)");
    assert_eq!(c.result, Expr::Int(2));
    let c = call(r#"+0 setsockopt(3, 6, 13, "cu" "bic", 5) = 0"#);
    assert_eq!(c.args[3], Expr::Str("cubic".into()));
    assert!(error("0 read(3, ..., 5 = 0").contains("1:18: error: expected `,` or `)`, got `=`"));
    let deep = format!("0 f({}1{}) = 0", "[".repeat(100), "]".repeat(100));
    assert!(error(&deep).contains("less nesting"));
}

#[test]
fn options_definitions_and_conditions() {
    let s = script("--mtu=1520\n--define=N=5\n--strict_segments\n`init`\n0 f(N) = 0\n`done`");
    assert_eq!(s.options.len(), 3);
    assert_eq!(s.options[0], (1, "mtu".into(), Some("1520".into())));
    assert_eq!((s.init, s.cleanup), (Some((4, "init".into())), Some((6, "done".into()))));
    let Action::Call(call) = &s.events[0].action else { panic!() };
    assert_eq!(call.args, [Expr::Int(5)]);
    let text = "0 `a`\n#ifdef X\n+0 `b`\n#else\n+0 `c`\n#ifndef Y\n+0 `d`\n#endif\n#endif\n+0 `e`";
    let commands = |defines: &[&str]| {
        let defines = defines.iter().map(|d| (d.to_string(), "1".to_string())).collect();
        let events = parse(text, &defines).unwrap().events;
        events.into_iter().map(|e| if let Action::Command(c) = e.action { c } else { "?".into() }).collect::<String>()
    };
    assert_eq!(commands(&[]), "acde");
    assert_eq!(commands(&["Y"]), "ace");
    assert_eq!(commands(&["X"]), "abe");
    assert!(error("0 `a`\n#ifdef X\n").contains("2:1: error: expected `#endif`"));
    assert!(error("0 `a`\n#endif\n").contains("`#ifdef` before"));
    assert!(error("").contains("an event"));
}

proptest! {
    #[test]
    fn any_words(words in proptest::collection::vec(
        prop::sample::select(vec!["0", "+0", "+.1", "*", "<", ">", "S.", "1:1(0)", "ack", "1", "win", "<mss", "read", "(", ")", "=",
            "{", "}", "[", "]", "...", ",", "`x`", "%{ a }%", "--mtu", "icmp", "#ifdef X\n", "#endif\n", "|", "\"s\"", "-"]), 0..25)) {
        let _ = parse(&words.join(" "), &Defines::new());
    }
}
