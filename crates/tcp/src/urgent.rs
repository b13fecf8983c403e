//! Urgent data (RFC 6093): the pointer names the byte after the urgent one, as every implementation has it.

use wire::tcp::{Flags, Header, Segment};

use crate::{Notice, State, Tcb};

impl Tcb {
    /// The last of the next `bytes` written is urgent (RFC 9293 3.8.5).
    pub fn write_urgent(&mut self, bytes: u32) {
        let up = self.sender.end() + bytes;
        self.knobs_mut().snd_up = Some(up);
    }

    /// Whether something urgent has not been acknowledged: segments then go one by one, each with its own pointer.
    pub fn urgent_out(&mut self) -> bool {
        let una = self.snd.una();
        let Some(k) = &mut self.knobs else { return false };
        k.snd_up = k.snd_up.filter(|up| up.after(una));
        k.snd_up.is_some()
    }

    /// Marks a segment that lies before the urgent pointer (MUST-31: also one that does not reach it).
    pub fn mark_urgent(&self, header: &mut Header) {
        let Some(up) = self.knobs.as_ref().and_then(|k| k.snd_up) else { return };
        if !up.after(self.snd.una()) || !up.after(header.seq) || header.flags.contains(Flags::SYN) {
            return;
        }
        // Farther than the field reaches: as far as it does, once everything up to there is on its way (Linux).
        let far = up.since(header.seq);
        if far <= 0xffff || (header.seq + 0xffff).after(self.snd.nxt()) {
            header.flags = header.flags | Flags::URG;
            header.urgent = far.min(0xffff) as u16;
        }
    }

    /// Notes the urgent pointer of an incoming segment, before the segment itself is processed; raises
    /// [`Notice::URGENT`] (RFC 9293 MUST-32: the application is told as soon as the pointer is known).
    pub fn note_urgent(&mut self, seg: &Segment) {
        let open = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        if !open || !seg.flags.contains(Flags::URG) || seg.urgent == 0 || self.orphaned() {
            return;
        }
        let window = self.rcv.window();
        let end = seg.seq + seg.payload.len() as u32;
        let reaches_in = seg.seq.before(self.rcv.nxt()) && end.after(self.rcv.nxt());
        if !seg.seq.in_window(self.rcv.nxt(), window.max(1)) && !reaches_in {
            return;
        }
        let at = seg.seq + (seg.urgent as u32 - 1);
        // Only what lies ahead, and within reach of the window, counts.
        if at.before(self.rcv.nxt()) || at.since(self.rcv.nxt()) > window.max(0xffff) {
            return;
        }
        let rcv_nxt = self.rcv.nxt();
        let k = self.knobs_mut();
        if k.rcv_up.is_none_or(|up| at.after(up) || up.before(rcv_nxt)) {
            k.rcv_up = Some(at);
            self.put_notice(Notice::URGENT);
        }
    }

    /// How many bytes the application will take before it comes to the urgent one.
    pub fn urgent_in(&self) -> Option<u32> {
        let up = self.knobs.as_ref()?.rcv_up?;
        let taken = self.stats.bytes_received - self.receiver.waiting() as u64;
        Some(up.since(self.receiver.irs() + 1 + taken as u32))
    }
}
