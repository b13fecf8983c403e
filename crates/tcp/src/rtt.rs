//! Round-trip time and retransmission timeout: RFC 6298, with Karn's algorithm applied by the caller (only segments that
//! were sent once are timed).
//!
//! Invariants: the round trip and its least are known, or neither is; the timeout is never nothing.

use crate::Config;

/// The estimator; times are µs.
#[derive(Clone, Debug)]
pub(crate) struct Rtt {
    /// 0 until the first measurement.
    srtt: u32,
    rttvar: u32,
    /// The least; `u32::MAX` until the first measurement.
    min: u32,
    /// Before backing off.
    base: u32,
    backoff: u8,
}

/// What is kept of it in a pause, beside how often the timeout was doubled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    srtt: u32,
    rttvar: u32,
    min: u32,
    base: u32,
}

impl Kept {
    /// The least round trip; `u32::MAX` where there was no measurement.
    pub fn min(&self) -> u32 {
        self.min
    }

    /// SRTT.
    pub fn srtt(&self) -> u32 {
        self.srtt
    }
}

impl Rtt {
    /// What to keep.
    pub fn keep(&self) -> Kept {
        let Rtt { srtt, rttvar, min, base, backoff: _ } = *self;
        Kept { srtt, rttvar, min, base }
    }

    /// Goes on with what was kept.
    pub fn resumed(Kept { srtt, rttvar, min, base }: Kept, backoff: u8) -> Rtt {
        Rtt { srtt, rttvar, min, base, backoff }
    }

    pub fn new(config: &Config) -> Rtt {
        let base = config.initial_rto.min(config.max_rto).as_micros() as u32;
        Rtt { srtt: 0, rttvar: 0, min: u32::MAX, base, backoff: 0 }
    }

    /// SRTT; 0 until the first measurement.
    #[inline(always)]
    pub fn srtt(&self) -> u32 {
        self.srtt
    }

    /// RTTVAR.
    pub fn rttvar(&self) -> u32 {
        self.rttvar
    }

    /// The least round trip; `u32::MAX` until the first measurement.
    #[inline(always)]
    pub fn min(&self) -> u32 {
        self.min
    }

    /// The same; 0 until the first measurement.
    #[inline(always)]
    pub fn least(&self) -> u32 {
        if self.min == u32::MAX { 0 } else { self.min }
    }

    /// How often the timeout was doubled.
    pub fn backoff(&self) -> u8 {
        self.backoff
    }

    /// RFC 6298 5.5.
    pub fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// The peer was heard of.
    #[inline(always)]
    pub fn forget_backoff(&mut self) {
        self.backoff = 0;
    }

    /// RFC 6298 5.7: the SYN's round trip could not be measured.
    pub fn unmeasured(&mut self, config: &Config) {
        self.base = self.base.max(3_000_000).min(config.max_rto.as_micros() as u32);
        self.backoff = 0;
    }

    /// RFC 6298 2.2, 2.3; `least` is the quickest of what the acknowledgment covered.
    pub fn sample(&mut self, r: u32, least: Option<u32>, config: &Config) {
        let r = r.max(1);
        self.min = self.min.min(least.unwrap_or(r).max(1));
        if self.srtt == 0 {
            self.srtt = r;
            self.rttvar = r / 2;
        } else {
            let err = self.srtt.abs_diff(r);
            self.rttvar = ((self.rttvar as u64 * 3 + err as u64) / 4) as u32;
            self.srtt = (((self.srtt as u64 * 7 + r as u64) / 8) as u32).max(1);
        }
        // Linux's habit: the floor holds for the variance term, so the RTO is never below SRTT + 200 ms.
        let floor = config.min_rto.as_micros() as u32;
        let max = config.max_rto.as_micros() as u32;
        self.base = self.srtt.saturating_add(self.rttvar.saturating_mul(4).max(floor)).min(max);
        self.backoff = 0;
    }

    /// The timeout now, µs (RFC 6298 5.5: doubled for each expiry in a row).
    #[inline]
    pub fn rto(&self, config: &Config) -> u32 {
        if self.backoff == 0 {
            return self.base;
        }
        let max = config.max_rto.as_micros() as u64;
        ((self.base as u64) << self.backoff.min(20)).min(max) as u32
    }

    /// The same before it was doubled: within it an answer comes, if it does.
    #[inline]
    pub fn unbacked(&self) -> u32 {
        self.base
    }

    /// Asserts what the module's head says.
    pub fn check(&self) {
        assert_eq!(self.srtt == 0, self.min == u32::MAX, "a round trip without its least: {self:?}");
        assert!(self.base > 0, "no RTO: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_rfc_6298() {
        let config = Config::default();
        let mut r = Rtt::new(&config);
        assert_eq!(r.rto(&config), 1_000_000);
        r.sample(100_000, None, &config);
        assert_eq!((r.srtt, r.rttvar), (100_000, 50_000));
        assert_eq!(r.rto(&config), 300_000);
        r.sample(200_000, None, &config);
        assert_eq!((r.srtt, r.rttvar), (112_500, 62_500));
        assert_eq!(r.rto(&config), 362_500);
        r.backoff = 2;
        assert_eq!(r.rto(&config), 1_450_000);
        r.backoff = 60;
        assert_eq!(r.rto(&config), 120_000_000);
    }
}
