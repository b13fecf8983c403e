//! No script makes the runner panic, or run for ever.

use pkt::{Defines, Under, Verdict, run};
use proptest::prelude::*;

const LINES: [&str; 40] = [
    "+0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3",
    "+0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 4",
    "+0 bind(3, ..., ...) = 0",
    "+0 listen(3, 1) = 0",
    "+0 fcntl(3, F_SETFL, O_NONBLOCK) = 0",
    "+0 connect(3, ..., ...) = -1 EINPROGRESS",
    "+0...1 accept(3, ..., ...) = 4",
    "+0 accept(3, ..., ...) = 4",
    "+.01 < S 0:0(0) win 65535 <mss 1000,sackOK,TS val 5 ecr 0,nop,wscale 7>",
    "+.01 < S 4294967295:4294967295(0) win 0",
    "* > S. 0:0(0) ack 1 <...>",
    "* > S 0:0(0) <...>",
    "+.01 < S. 0:0(0) ack 1 win 5 <mss 0,nop,nop,sackOK,nop,wscale 15>",
    "+.01 < . 1:1(0) ack 1 win 65535 <nop,nop,TS val 9 ecr 0>",
    "+.01 < . 1:1(0) ack 1 win 512",
    "+.01 < FPU. 1:65001(65000) ack 1 win 512 urg 65535",
    "+.01 < . 1001:2001(1000) ack 1 win 0 <sack 5:4 7:9,nop,nop>",
    "+.01 < R. 1:1(0) ack 1 win 0",
    "+.01 < R 2:2(0) win 0",
    "+.01 < F. 1:1(0) ack 2 win 9",
    "+0 < [ce] EWA. 1:2(1) ack 1 win 9 <md5 00,nop>",
    "+0 write(4, ..., 9223372036854775807) = 1",
    "+0 write(4, ..., 100000) = 100000",
    "+0...5 writev(4, [{..., 9223372036854775807}, {..., 9223372036854775807}, {..., 7}], 3) = 1",
    "+0...1 read(4, ..., 1000000) = 1",
    "+0 recv(4, ..., 10, MSG_PEEK|MSG_DONTWAIT|MSG_OOB|MSG_TRUNC) = 0",
    "+0 poll([{fd=4, events=POLLIN, revents=0}], 1, 9223372036854775807) = 0",
    "+0 epoll_create(1) = 5",
    "+0 epoll_ctl(5, EPOLL_CTL_ADD, 4, {events=EPOLLET|EPOLLIN, fd=4}) = 0",
    "+0 epoll_wait(5, {events=0, ptr=0}, 99999999999, 1) = 0",
    "+0 setsockopt(4, SOL_SOCKET, SO_LINGER, {onoff=1, linger=9223372036854775807}, 8) = 0",
    "+0 setsockopt(4, SOL_TCP, TCP_MAXSEG, [-5], 4) = 0",
    "+0 getsockopt(4, SOL_TCP, TCP_MAXSEG, [536], [4]) = 0",
    "+0 shutdown(4, SHUT_RDWR) = 0",
    "+0 close(3) = 0",
    "+0 close(4) = 0",
    "+1000 %{ assert tcpi_state >= 0 }%",
    "+0 < icmp unreachable frag_needed mtu 0 [0:65000(65000)]",
    "+0 < icmp unreachable type_300 [raw(65535)]",
    "+0 < udp 1>2 (65535)",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn lines_in_any_order(lines in proptest::collection::vec(prop::sample::select(LINES.to_vec()), 1..25), v6: bool) {
        let text = format!("0 `true`\n{}", lines.join("\n"));
        let version = [("ip_version", Some(if v6 { "ipv6" } else { "ipv4" })), ("verbose", None)];
        let report = run("any.pkt", &text, &version, &Defines::new(), Under::Stack);
        let syntax = matches!(report.verdict, Verdict::Syntax { .. });
        prop_assert!(!syntax, "{}", report.line());
    }
}
