//! What several test programs need of wires in memory.

use wire::MacAddr;

/// Makes a frame that left one engine's wire fit for another engine's: each takes itself for the same end of its own, which has the first
/// of these addresses.
pub fn readdress(frame: &mut [u8], macs: &[MacAddr; 2]) {
    if frame[0] & 1 == 0 {
        frame[..6].copy_from_slice(&macs[0].0);
    }
    frame[6..12].copy_from_slice(&macs[1].0);
    // ARP's sender.
    if frame[12..14] == [8, 6] {
        frame[22..28].copy_from_slice(&macs[1].0);
    }
}
