//! Whose a received frame is: another lane's is given to it.

use stack::{Asked, InterfaceId, OtherLanes, Sought, Stack, Steering};
use wire::burst::RxFrame;

use crate::fallback::Fallback;
use crate::handover::{Handed, Out};
use client::{LaneStats, add};

/// What became of frames that are not this lane's.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    out: u64,
    dropped: u64,
    elsewhere: u64,
}

impl Counts {
    fn add(&mut self, given: bool) {
        self.out += given as u64;
        self.dropped += !given as u64;
    }

    /// Lets the other lanes see what they were given.
    pub fn settle(&self, out: &mut Out, stats: &LaneStats) {
        if self.out + self.dropped > 0 {
            add(&stats.handed_batches, out.publish());
            add(&stats.handed_out, self.out);
            add(&stats.handed_dropped, self.dropped);
            add(&stats.fallback_out, self.elsewhere);
        }
    }
}

/// Gives frames of a burst to the lanes they belong to.
pub(crate) struct Sort<'a> {
    pub steering: &'a Steering,
    pub out: &'a mut Out,
    pub fallback: &'a mut Fallback,
    /// Our own.
    pub lane: u16,
    /// The port by which they came.
    pub port: usize,
    /// The burst, where another lane took it from its port and gave it to us: whose its frames are it has seen to.
    pub handed: Option<&'a Handed<'a>>,
    pub counts: &'a mut Counts,
}

impl Sort<'_> {
    /// The interface of the port.
    fn interface(&self) -> InterfaceId {
        InterfaceId(self.port as u8)
    }

    /// Every other lane gets a copy.
    fn give_all(&mut self, frame: RxFrame) {
        for lane in (0..self.steering.lanes()).filter(|lane| *lane != self.lane) {
            self.counts.add(self.out.give(lane, self.port, frame, true));
        }
    }
}

impl OtherLanes for Sort<'_> {
    fn asked(&self) -> Asked {
        match self.handed {
            _ if self.fallback.is_needed() => Asked::First,
            Some(_) => Asked::Never,
            None => Asked::Unknown,
        }
    }

    fn came_by(&self) -> Option<u16> {
        Some(self.handed.map_or(self.lane, Handed::giver))
    }

    fn take(&mut self, stack: &Stack, index: usize, frame: RxFrame, sought: Sought) -> bool {
        let lane = match self.handed.filter(|_| sought != Sought::Reassembled) {
            Some(handed) if handed.chosen(index) => return false,
            Some(_) => self.lane,
            None => match self.steering.lane_of_plain(frame.data) {
                Some(lane) => lane,
                None if stack::is_for_all(frame.data) => {
                    self.give_all(frame);
                    return false;
                }
                // What names no lane is lane 0's to answer. Where it was put together another may as well: it may be too long to
                // hand over, which a segment is only where the peer keeps to no MSS.
                None => {
                    let nobody = if sought == Sought::Reassembled { self.lane } else { 0 };
                    self.steering.named_lane(frame.data).unwrap_or(nobody)
                }
            },
        };
        if lane != self.lane {
            // A connection may live here that its tuple does not name: it was given to this lane, which listens for it.
            if sought != Sought::InVain && stack.serves(self.interface(), frame.data) {
                return false;
            }
            self.counts.add(self.out.give(lane, self.port, frame, false));
            return true;
        }
        if self.fallback.is_needed()
            && let Some(lane) = self.fallback.lane_of(stack, self.interface(), frame.data)
        {
            let given = self.out.give(lane, self.port, frame, true);
            self.counts.add(given);
            self.counts.elsewhere += given as u64;
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use io::Bell;
    use mem::{Pool, PoolConfig};
    use protocol::{Endpoint, Job, Token};
    use stack::{InterfaceConfig, Mode, StackConfig};
    use wire::burst::{RxBurst, RxChecksum, TxCaps};
    use wire::tcp::{Flags, Header, Options};
    use wire::{Addr, Instant, MacAddr, SeqNum, ethernet, icmpv4, ipv4};

    use super::*;
    use crate::fallback::Directory;
    use crate::handover::{Handover, mesh};

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const NOW: Instant = Instant::from_micros(1_000_000);

    struct Burst(Vec<Vec<u8>>);

    impl RxBurst for Burst {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn frame(&self, index: usize) -> RxFrame<'_> {
            RxFrame::new(&self.0[index], RxChecksum::Unknown)
        }
    }

    struct One {
        stack: Stack,
        handover: Handover,
        fallback: Fallback,
        counts: Counts,
    }

    /// Lanes and what lies between them.
    struct Lanes {
        steering: Steering,
        lanes: Vec<One>,
    }

    impl Lanes {
        /// Those of `listening` listen on port 80.
        fn new(lanes: u16, listening: &[u16]) -> Lanes {
            let steering = Steering::spread(lanes);
            let bells: Vec<_> = (0..lanes).map(|_| Arc::new(Bell::new().unwrap())).collect();
            let directory = Directory::new(lanes as usize);
            let one = |(lane, handover)| {
                let (stack_side, _) = Pool::new(&PoolConfig { chunks: 1024, ..PoolConfig::default() }).unwrap();
                let (mut jobs, stack_jobs) = mem::ring::ring(64).unwrap();
                let (events, _) = mem::ring::ring(64).unwrap();
                let config = StackConfig { steering: steering.clone(), lane, ..StackConfig::default() };
                let mut stack = Stack::new(config, stack_side, stack_jobs, events);
                let caps = TxCaps { max_frame: 1518, checksum: false, max_gso: 0 };
                let (name, mode) = ("test0".into(), Mode::Dedicated);
                let (mac, mtu, vlan, dad, autoconf) = (MAC, 1500, None, 0, false);
                let interface =
                    stack.add_interface(InterfaceConfig { name, mac, mtu, vlan, mode, caps, dad, autoconf });
                stack.add_address(interface, [10, 0, 0, 1].into(), 8);
                if listening.contains(&lane) {
                    let local = Endpoint { addr: Addr::UNSPECIFIED_V4, port: 80 };
                    let (token, receive_buffer) = (Token(1), 1 << 16);
                    let (backlog, v6_only, reuse_port) = (64, false, false);
                    let listen = Job::Listen { token, local, backlog, v6_only, reuse_port, receive_buffer };
                    assert!(jobs.push(listen.into_message()).is_ok());
                    jobs.publish();
                    stack.run_jobs(NOW);
                }
                One { stack, handover, fallback: Fallback::new(directory.clone(), lane), counts: Counts::default() }
            };
            let mut lanes: Vec<One> = (0..).zip(mesh(&bells, 1518).unwrap()).map(one).collect();
            (0..2).for_each(|_| lanes.iter_mut().for_each(|l| l.fallback.follow(&l.stack)));
            Lanes { steering, lanes }
        }

        /// Frames come by a lane's port, and whatever is handed over is taken; what each lane took.
        fn arrive(&mut self, lane: u16, frames: Vec<Vec<u8>>) -> Vec<Taken> {
            let before: Vec<Taken> = self.lanes.iter().map(taken).collect();
            let steering = &self.steering;
            let One { stack, handover, fallback, counts } = &mut self.lanes[lane as usize];
            let mut sort = Sort { steering, out: &mut handover.out, fallback, lane, port: 0, handed: None, counts };
            stack.receive_own(NOW, InterfaceId(0), &Burst(frames), &mut sort);
            handover.out.publish();
            let n = self.lanes.len();
            // No frame goes further than from port to fragments, name and listener.
            for lane in (0..3 * n).map(|i| i % n) {
                let One { stack, handover, fallback, counts } = &mut self.lanes[lane];
                handover.take(64, |out, port, burst| {
                    let (lane, handed) = (lane as u16, Some(burst));
                    let mut sort = Sort { steering, out, fallback, lane, port, handed, counts };
                    stack.receive_own(NOW, InterfaceId(0), burst, &mut sort);
                });
                handover.out.publish();
            }
            assert!(self.lanes.iter().all(|l| l.handover.is_empty() && l.counts.dropped == 0));
            let grown = |(now, then): (Taken, Taken)| Taken {
                segments: now.segments - then.segments,
                put_together: now.put_together - then.put_together,
                resets: now.resets - then.resets,
                given: now.given - then.given,
                chosen: now.chosen - then.chosen,
            };
            self.lanes.iter().map(taken).zip(before).map(grown).collect()
        }

        /// The first of many ports or identifications whose lane is `lane`.
        fn find(&self, lane: u16, frame: impl Fn(u16) -> Vec<u8>) -> u16 {
            (10_000..).find(|n| self.steering.named_lane(&frame(*n)) == Some(lane)).unwrap()
        }
    }

    /// What a lane has done with what came.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Taken {
        segments: u64,
        put_together: u64,
        resets: u64,
        given: u64,
        chosen: u64,
    }

    fn taken(lane: &One) -> Taken {
        let (c, counts) = (lane.stack.counters(), lane.counts);
        Taken {
            segments: c.segments_in,
            put_together: c.reassembled,
            resets: c.resets_out,
            given: counts.out,
            chosen: counts.elsewhere,
        }
    }

    fn packet(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut b = vec![0; 34];
        let (src, dst) = (Addr::from_v4([10, 0, 0, 2]), Addr::from_v4([10, 0, 0, 1]));
        ethernet::emit(&mut b, MAC, MacAddr([2, 0, 0, 0, 0, 2]), None, ethernet::IPV4);
        ipv4::Header { src, dst, protocol, ..Default::default() }.emit(&mut b[14..], payload.len());
        b.extend(payload);
        b
    }

    fn segment(port: u16, flags: Flags) -> Vec<u8> {
        let (seq, ack, window, urgent, options) = (SeqNum(1), SeqNum(0), 9000, 0, Options::default());
        let header = Header { src_port: port, dst_port: 80, seq, ack, flags, window, urgent, options };
        let mut tcp = [0; 32];
        // Some text behind it: the header may not be cut.
        let n = header.emit(&mut tcp, false) + 12;
        wire::tcp::fill_checksum(Addr::from_v4([10, 0, 0, 2]), Addr::from_v4([10, 0, 0, 1]), &mut tcp[..n]);
        packet(ipv4::TCP, &tcp[..n])
    }

    /// A frame's packet in fragments of so many bytes.
    fn fragments(frame: &[u8], id: u16, len: usize) -> Vec<Vec<u8>> {
        let parts = frame[34..].chunks(len).enumerate();
        let fragment = |(i, text): (usize, &[u8])| {
            let mut b = packet(frame[23], text);
            let more = (34 + (i + 1) * len < frame.len()) as u16;
            b[18..20].copy_from_slice(&id.to_be_bytes());
            b[20..22].copy_from_slice(&(more << 13 | (i * len / 8) as u16).to_be_bytes());
            b[24..26].fill(0);
            let sum = wire::checksum::sum(&b[14..34]).finish();
            b[24..26].copy_from_slice(&sum.to_be_bytes());
            b
        };
        parts.map(fragment).collect()
    }

    #[test]
    fn a_frame_goes_to_the_lane_that_its_ports_name() {
        let mut lanes = Lanes::new(2, &[0, 1]);
        for (by, lane) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let port = lanes.find(lane, |port| segment(port, Flags::SYN));
            let taken = lanes.arrive(by, vec![segment(port, Flags::SYN)]);
            let mut expected = [Taken::default(), Taken::default()];
            expected[lane as usize].segments = 1;
            expected[by as usize].given = (by != lane) as u64;
            assert_eq!(taken, expected);
        }
    }

    /// Whichever lane its fragments come to, whichever puts them together, whichever its ports name, and whichever has it.
    #[test]
    fn a_fragmented_segment_finds_its_connection() {
        let all = || (0..3u16).flat_map(|a| (0..3).flat_map(move |b| (0..3).map(move |c| (a, b, c))));
        for (by, meets, named) in all() {
            for listens in (0..3).map(Some).chain([None]) {
                let listening: Vec<u16> = listens.map_or(vec![0, 1, 2], |lane| vec![lane]);
                let lives = listens.unwrap_or(named);
                let mut lanes = Lanes::new(3, &listening);
                let port = lanes.find(named, |port| segment(port, Flags::SYN));
                let syn = segment(port, Flags::SYN);
                let id = lanes.find(meets, |id| fragments(&syn, id, 24).swap_remove(0));
                // A connection that begins so, and then one that is known: where it lives it stays.
                for known in [false, true] {
                    let taken = lanes.arrive(by, fragments(&syn, id, 24));
                    let mut expected = [(); 3].map(|()| Taken::default());
                    expected[lives as usize].segments = 1;
                    expected[meets as usize].put_together = 1;
                    expected[by as usize].given += if by != meets { 2 } else { 0 };
                    if !(known && meets == lives) {
                        expected[meets as usize].given += (meets != named) as u64;
                        expected[named as usize].given += (named != lives) as u64;
                        expected[named as usize].chosen += (named != lives) as u64;
                    }
                    assert_eq!(taken, expected, "{by} {meets} {named} {listens:?} {known}");
                }
            }
        }
    }

    #[test]
    fn what_finds_no_room_is_counted_as_that_alone() {
        let mut lanes = Lanes::new(2, &[1]);
        let One { stack, handover, fallback, counts } = &mut lanes.lanes[0];
        let port = (0..).find(|port| lanes.steering.named_lane(&segment(*port, Flags::SYN)) == Some(0)).unwrap();
        let (steering, out) = (&lanes.steering, &mut handover.out);
        let mut arp = vec![0; 42];
        ethernet::emit(&mut arp, MacAddr::BROADCAST, MacAddr([4; 6]), None, ethernet::ARP);
        let burst = Burst([vec![segment(port, Flags::SYN); 600], vec![arp; 3]].concat());
        let mut sort = Sort { steering, out, fallback, lane: 0, port: 0, handed: None, counts };
        stack.receive_own(NOW, InterfaceId(0), &burst, &mut sort);
        assert_eq!((counts.out, counts.elsewhere, counts.dropped), (512, 512, 88 + 3));
    }

    /// It is longer than what lanes can hand over.
    #[test]
    fn a_long_ping_is_answered_where_it_is_put_together() {
        let mut lanes = Lanes::new(2, &[]);
        let mut echo = vec![0; 4000];
        let n = icmpv4::Message::EchoRequest { id: 1, seq: 2, data: &[7; 3900] }.emit(&mut echo);
        let echo = packet(ipv4::ICMP, &echo[..n]);
        for (by, meets) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let id = lanes.find(meets, |id| fragments(&echo, id, 1480).swap_remove(0));
            let echoes = |lanes: &Lanes| [0, 1].map(|i: usize| lanes.lanes[i].stack.counters().echoes);
            let mut expected = echoes(&lanes);
            expected[meets as usize] += 1;
            lanes.arrive(by, fragments(&echo, id, 1480));
            assert_eq!(echoes(&lanes), expected);
        }
    }
}
