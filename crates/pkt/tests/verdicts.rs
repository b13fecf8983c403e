//! What a script that does not hold is told.

use pkt::{Defines, Under, Verdict, run};

const OPEN: &str = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+.1 < S 0:0(0) win 65535 <mss 1000>
+0 > S. 0:0(0) ack 1 <mss 1460>
+.01 < . 1:1(0) ack 1 win 65535
+0 accept(3, ..., ...) = 4
";

fn verdict(tail: &str, given: &[(&str, Option<&str>)]) -> Verdict {
    run("t.pkt", &format!("{OPEN}{tail}"), given, &Defines::new(), Under::Stack).verdict
}

#[track_caller]
fn fails(tail: &str, on: u32, expects: &str, gets: &str) {
    match verdict(tail, &[]) {
        Verdict::Fail { line, expected, got } => {
            assert_eq!(line, on, "expected {expected}, got {got}");
            assert!(expected.contains(expects), "expected {expected}");
            assert!(got.contains(gets), "got {got}");
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn unsupported(tail: &str, why: &str) {
    match verdict(tail, &[]) {
        Verdict::Unsupported { line: 8, reason } => assert_eq!(reason, why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_field_of_a_segment_is_compared() {
    let write = "+0 write(4, ..., 100) = 100\n+0 > ";
    fails(&format!("{write}. 1:101(100) ack 1"), 9, "PSH 0 not 1", "> P. 1:101(100) ack 1");
    fails(&format!("{write}P. 2:102(100) ack 1"), 9, "seq 2 not 1", "");
    fails(&format!("{write}P. 1:91(90) ack 1"), 9, "bytes 90 not 100", "");
    fails(&format!("{write}P. 1:101(100) ack 2"), 9, "ack 2 not 1", "");
    fails(&format!("{write}P. 1:101(100) ack 1 win 7"), 9, "win 7 not", "");
    fails(&format!("{write}P. 1:101(100) ack 1 urg 7"), 9, "urg 7 not 0", "");
    fails(&format!("{write}P. 1:101(100) ack 1 <nop,nop,nop,eol>"), 9, "<nop,nop,nop,eol> not <>", "");
    fails(&format!("{write}[ce] P. 1:101(100) ack 1"), 9, "ecn 3 not 0", "");
    fails(&format!("{write}[ttl 3] P. 1:101(100) ack 1"), 9, "ttl 3 not 64", "");
    fails("+0 > P. 1:101(100) ack 1", 8, "> P. 1:101(100) ack 1", "nothing by 2.11");
}

#[test]
fn times_are_compared() {
    let early = "+0 write(4, ..., 100) = 100\n+.1 > P. 1:101(100) ack 1";
    fails(early, 9, "outbound packet at 0.210000", "it at 0.110000 (tolerance 0.012500)");
    let near = "+0 write(4, ..., 100) = 100\n+.003 > P. 1:101(100) ack 1";
    assert_eq!(verdict(near, &[]), Verdict::Pass);
    assert!(matches!(verdict(near, &[("exact", None)]), Verdict::Fail { line: 9, .. }));
    let range = "+0 write(4, ..., 100) = 100\n+.1~+.2 > P. 1:101(100) ack 1";
    fails(range, 9, "from 0.210000 to 0.310000", "it at 0.110000");
    let any = "+0 write(4, ..., 100) = 100\n* > P. 1:101(100) ack 1";
    assert_eq!(verdict(any, &[("exact", None)]), Verdict::Pass);
    assert!(matches!(verdict("+0 write(4, ..., 100) = 100", &[("exact", None)]), Verdict::Fail { line: 8, .. }));
}

#[test]
fn results_of_calls_are_compared() {
    fails("+0 write(4, ..., 100) = 99", 8, "write to return 99", "100");
    fails("+0 fcntl(4, F_SETFL, O_NONBLOCK) = 0\n+0 read(4, ..., 1) = 1", 9, "read to return 1", "-1 EAGAIN");
    fails("+0 fcntl(4, F_SETFL, O_NONBLOCK) = 0\n+0 read(4, ..., 1) = -1 EPIPE", 9, "return -1 EPIPE", "-1 EAGAIN");
    fails("+0 ioctl(4, SIOCINQ, [3]) = 0", 8, "SIOCINQ 3 from ioctl", "0");
    fails("+0 getsockopt(4, SOL_TCP, TCP_NODELAY, [1], [4]) = 0", 8, "a value of 1", "0");
    fails("+0 poll([{fd=4, events=POLLOUT, revents=POLLIN}], 1, 0) = 1", 8, "revents IN", "OUT");
    fails("+0 %{ assert tcpi_state == TCP_LISTEN, tcpi_state }%", 8, "tcpi_state == TCP_LISTEN", "1");
    fails("+0 read(9, ..., 1) = 0", 8, "a descriptor of the script", "9");
    fails("+0 reed(4, ..., 1) = 0", 8, "the name of a system call", "reed");
    fails("+0 read(4, ..., 1) = 0", 8, "read to return", "that it blocks");
}

#[test]
fn calls_block_and_return_in_time() {
    let reads = "+0...0.2 read(4, ..., 100) = 100\n+.2 < P. 1:101(100) ack 1 win 65535\n+0 > . 1:1(0) ack 101";
    assert_eq!(verdict(reads, &[("exact", None)]), Verdict::Pass);
    fails(&reads.replace("0.2 read", "0.5 read"), 8, "read to return at 0.610000", "it at 0.310000");
    fails("+0...0.2 read(4, ..., 100) = 100", 8, "read to return", "that it still blocks");
    let poll = "+0...0.05 poll([{fd=4, events=POLLIN, revents=0}], 1, 50) = 0\n+.1 fcntl(4, F_GETFL) = 2";
    assert_eq!(verdict(poll, &[("exact", None)]), Verdict::Pass);
}

#[test]
fn what_is_not_here_is_said() {
    unsupported("+0 setsockopt(4, SOL_TCP, TCP_FASTOPEN, [1], 4) = 0", "TCP_FASTOPEN");
    unsupported("+0 send(4, ..., 5, MSG_ZEROCOPY) = 5", "MSG_ZEROCOPY");
    unsupported("+0 splice(4, 0, 5, 0, 1, 0) = 1", "splice of Linux");
    unsupported("+0 socket(..., SOCK_DGRAM, IPPROTO_UDP) = 5", "sockets that are not SOCK_STREAM");
    unsupported("+0 %{ assert tcpi_unheard_of == 1 }%", "tcpi_unheard_of of tcp_info");
    unsupported("+0 > gre: . 1:1(0) ack 1", "gre around a packet");
}

#[test]
fn reports_name_file_line_and_column() {
    let line = |text: &str| run("t.pkt", text, &[], &Defines::new(), Under::Stack).line();
    assert_eq!(line("0 socket(... = 3"), "t.pkt:1:14: error: expected `,` or `)`, got `=` (ipv4)");
    assert_eq!(line("--nonsense\n0 `true`"), "t.pkt:1:1: error: expected an option, got --nonsense (ipv4)");
    let missing = "0 socket(..., SOCK_STREAM, 0) = 3\n+0 read(4, ..., 1) = 0";
    assert_eq!(line(missing), "t.pkt:2: error: expected a descriptor of the script, got 4 (ipv4)");
    let report = run("t.pkt", "`ethtool -K tun0 tso off`\n0 `nstat`", &[], &Defines::new(), Under::Stack);
    assert_eq!((report.exit_code(), report.notices.len()), (0, 2));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((json["verdict"].as_str(), json["over"].as_str()), (Some("pass"), Some("ipv4")));
}
