//! Consent to use a port: on a shared interface the kernel must know that it is ours.

/// Held while a listener is open; dropping it gives the port back.
pub struct Claim(#[allow(dead_code)] Box<dyn std::any::Any>);

impl Claim {
    pub(crate) fn new(held: impl std::any::Any) -> Claim {
        Claim(Box::new(held))
    }
}
