//! How to speak to a lane from outside its thread.

use std::sync::{Arc, Weak};

use client::LaneStats;
use io::Bell;

use crate::mailbox::{Control, Mailbox};

/// How to speak to one lane from outside.
pub(crate) struct LaneLink {
    /// Gone with the lane.
    pub mail: Weak<Mailbox>,
    pub bell: Arc<Bell>,
    pub stats: Arc<LaneStats>,
    pub index: u16,
    /// The application alone runs its turns, and may run none.
    pub inline: bool,
}

impl LaneLink {
    /// Whether the lane had no connection at the end of its last turn, and begins none before the application runs another: then it does
    /// not matter where it still listens.
    pub fn stands_still_empty(&self) -> bool {
        self.inline && self.stats.connections() == 0
    }

    /// Whether the lane is no more.
    pub fn is_gone(&self) -> bool {
        self.mail.strong_count() == 0
    }

    pub fn send(&self, control: Control) {
        // A lane that is gone needs nothing.
        if let Some(mail) = self.mail.upgrade() {
            mail.send(control);
            self.bell.ring();
        }
    }
}
