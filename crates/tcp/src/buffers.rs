//! The two buffers: what the application reads and queues, and how they grow with that.

use mem::Side;

use crate::{Config, Context, Notice, State, Tcb, flag};

impl Tcb {
    /// Bytes by which the right edge may be ahead of what was received, as far as the lane keeps up.
    #[inline(always)]
    pub(crate) fn ahead(&self, cx: &Context) -> u32 {
        cx.limits.window.saturating_mul(self.receiver.mss_clamp() as u32)
    }

    /// The application read `bytes`: tell the peer when the window opens by a useful step.
    pub fn consumed(&mut self, bytes: u32, cx: &mut Context) {
        let bytes = self.receiver.read(bytes);
        if !matches!(self.state, State::Established | State::FinWait1 | State::FinWait2) {
            return;
        }
        let most = self.window_clamp().min(cx.config.receive_buffer_max);
        let grows = !self.has(flag::RCVBUF_LOCKED);
        self.receiver.autotune(bytes, cx.now, grows.then_some(most), || cx.pool.plenty());
        if self.receiver.worth_update(&self.rcv, self.options.rcv_scale(), self.ahead(cx)) {
            self.set(flag::ACK_NOW, true);
        }
    }

    /// Puts all bytes that it holds into chunks of another pool; `false`, and nothing is done, where that has too few.
    pub fn move_bytes(&mut self, from: &mut Side, to: &mut Side) -> bool {
        let Tcb { receiver, sender, .. } = self;
        let bytes: usize = receiver.chains().chain([sender.chain()]).map(|chain| chain.len()).sum();
        if bytes > to.spare() {
            return false;
        }
        let mut copies = Vec::new();
        for chain in receiver.chains().chain([sender.chain()]) {
            match chain.copied(from, to) {
                Some(copy) => copies.push(copy),
                None => {
                    copies.into_iter().for_each(|copy| copy.free(to));
                    return false;
                }
            }
        }
        for (chain, copy) in receiver.chains().chain([sender.chain()]).zip(copies) {
            core::mem::replace(chain, copy).free(from);
        }
        true
    }

    /// TCP_WINDOW_CLAMP, bytes; `u32::MAX` where none is set.
    #[inline(always)]
    fn window_clamp(&self) -> u32 {
        self.knobs.as_ref().map(|k| k.window_clamp).filter(|clamp| *clamp > 0).unwrap_or(u32::MAX)
    }

    /// SO_RCVBUF: a smaller buffer takes effect as data arrives; the window does not shrink, and no longer grows by itself.
    pub fn set_receive_buffer(&mut self, bytes: u32) {
        self.receiver.set_buffer(bytes.clamp(2048, Config::MOST_BYTES).min(self.window_clamp()));
        self.set(flag::RCVBUF_LOCKED, true);
    }

    /// SO_SNDBUF, for the rhythm of reports; it no longer grows by itself.
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.sender.set_buffer(bytes.clamp(2048, Config::MOST_BYTES));
        self.set(flag::SNDBUF_LOCKED, true);
        // A quarter of a smaller buffer may be acknowledged already, and no acknowledgment be to come.
        if self.sender.fills_a_quarter() && !self.orphaned() {
            self.put_notice(Notice::ACKED);
        }
    }

    /// Bytes that the application should queue at most.
    pub fn send_buffer(&self) -> u32 {
        self.sender.buffer()
    }

    /// Send-buffer autotuning: two windows, so that one can be acknowledged while the next is queued (Linux's
    /// `tcp_sndbuf_expand`).
    pub(crate) fn expand_send_buffer(&mut self, cx: &Context) {
        let want = 2 * self.cc.cwnd() as u64 * self.options.smss() as u64;
        let want = want.min(cx.config.send_buffer_max as u64) as u32;
        // In steps of an eighth: each is an event.
        if !self.sender.grows(want) || self.has(flag::SNDBUF_LOCKED) || !cx.pool.plenty() {
            return;
        }
        self.sender.set_buffer(want);
        if !self.orphaned() {
            self.put_notice(Notice::ROOM);
        }
    }
}
