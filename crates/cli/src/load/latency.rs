//! Latency distributions.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Latencies to three digits.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Latency {
        // Three digits is a valid precision, the only way this could fail.
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).unwrap_or_else(|_| unreachable!());
        Latency(histogram)
    }
}

impl Latency {
    /// Counts one.
    pub fn record(&mut self, time: Duration) {
        self.record_n(time, 1);
    }

    /// Counts several that are equal.
    pub fn record_n(&mut self, time: Duration, n: u64) {
        self.0.saturating_record_n(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1), n);
    }

    /// Adds another thread's.
    pub fn add(&mut self, other: &Latency) {
        // Equal bounds: every value fits.
        let _ = self.0.add(&other.0);
    }

    /// The largest.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// Its percentiles.
    pub fn summary(&self) -> Percentiles {
        let micros = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        Percentiles {
            samples: self.0.len(),
            min: if self.0.is_empty() { 0.0 } else { self.0.min() as f64 / 1e3 },
            mean: self.0.mean() / 1e3,
            stdev: self.0.stdev() / 1e3,
            p50: micros(0.5),
            p90: micros(0.9),
            p99: micros(0.99),
            p999: micros(0.999),
            max: self.0.max() as f64 / 1e3,
        }
    }
}

/// A latency distribution in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Percentiles {
    /// Values measured; where there are none, all else is 0.
    pub samples: u64,
    /// The smallest.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub stdev: f64,
    /// Median.
    pub p50: f64,
    /// 90 of 100 are at most this.
    pub p90: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1000.
    pub p999: f64,
    /// The largest.
    pub max: f64,
}

/// Columns of the report: p50, p90, p99, p99.9 and the largest; dashes where nothing was measured.
impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for number in [self.p50, self.p90, self.p99, self.p999, self.max] {
            match self.samples {
                0 => write!(f, "{:>10}", "-")?,
                _ => write!(f, "{number:>10.0}")?,
            }
        }
        Ok(())
    }
}
