//! What a connection gives up when the stack is short of chunks.

use crate::{Context, Tcb};

impl Tcb {
    /// Drops what came out of order: the peer, which may not forget it before it is acknowledged (RFC 2018 8), sends it
    /// again. How many bytes that were.
    pub fn shed_out_of_order(&mut self, cx: &mut Context) -> usize {
        let Some(ooo) = self.receiver.take_out_of_order() else { return 0 };
        let bytes = ooo.bytes();
        ooo.free(cx.pool);
        self.judge_disturbance();
        bytes
    }
}
