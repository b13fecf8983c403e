//! The memcached text protocol from the client's side: gets and sets of random keys. Every value is checked.

use super::cause::Cause;
use super::talk::Talk;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Values begin at one of so many places of the same text.
const VALUES: usize = 256;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Different keys.
    pub keys: u32,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// So many gets...
    pub gets: u32,
    /// ...to so many sets.
    pub sets: u32,
}

impl Default for Workload {
    fn default() -> Workload {
        // The thesis's section 5.4: keys of 64 bytes, values of 1 KiB.
        Workload { keys: 10_000, key_bytes: 64, value_bytes: 1024, gets: 9, sets: 1 }
    }
}

impl Workload {
    /// Sets one of them by its name in a URL.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = |least: u32, most: u32| {
            let number = value.parse().ok().filter(|n| (least..=most).contains(n));
            number.ok_or_else(|| format!("{name}={value}: a number from {least} to {most} is needed"))
        };
        match name {
            "keys" => self.keys = number(1, 100_000_000)?,
            // Room for the number; memcached's limit.
            "key" => self.key_bytes = number(9, 250)? as usize,
            "value" => self.value_bytes = number(0, 1 << 20)? as usize,
            "gets" => self.gets = number(0, 1_000_000)?,
            "sets" => self.sets = number(0, 1_000_000)?,
            _ => return Err(format!("{name:?} is unknown: keys, key, value, gets and sets are known")),
        }
        Ok(())
    }
}

/// A generator's part of a workload.
pub struct Mix {
    workload: Workload,
    /// Keys that somebody has begun to set. Every key is set once before others are asked for.
    filled: Arc<AtomicU32>,
    full: bool,
    /// What values are cut from.
    text: Vec<u8>,
    random: u64,
    misses: u64,
}

impl Mix {
    /// Generators that fill one server together share `filled`; `seed` tells them apart.
    pub fn new(workload: &Workload, filled: Arc<AtomicU32>, seed: u64) -> Mix {
        let text = (b'!'..=b'~').cycle().take(workload.value_bytes + VALUES).collect();
        let random = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Mix { workload: workload.clone(), filled, full: false, text, random, misses: 0 }
    }

    /// xorshift64*, evenly below `n`.
    fn random(&mut self, n: u32) -> u32 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let high = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((high * u64::from(n)) >> 32) as u32
    }

    fn value(&self, key: u32) -> &[u8] {
        &self.text[key as usize % VALUES..][..self.workload.value_bytes]
    }

    /// A key that nobody has set yet.
    fn unset(&mut self) -> Option<u32> {
        if self.full {
            return None;
        }
        let key = self.filled.fetch_add(1, Ordering::Relaxed);
        self.full = key >= self.workload.keys;
        if self.full {
            // It shall not run over.
            self.filled.store(self.workload.keys, Ordering::Relaxed);
        }
        (!self.full).then_some(key)
    }
}

/// What a response must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expected {
    #[default]
    Stored,
    Value,
    /// The key was not there.
    Nothing,
}

/// A connection's request and how much of the answer has come.
#[derive(Debug, Default)]
pub struct Asking {
    request: Vec<u8>,
    key: u32,
    expected: Expected,
    /// `VALUE key 0 length`.
    head: Vec<u8>,
    heard: usize,
}

impl Asking {
    /// The answer's parts.
    fn answer<'a>(&'a self, mix: &'a Mix) -> [&'a [u8]; 3] {
        match self.expected {
            Expected::Stored => [b"STORED\r\n", b"", b""],
            Expected::Value => [&self.head, mix.value(self.key), b"\r\nEND\r\n"],
            Expected::Nothing => [b"END\r\n", b"", b""],
        }
    }
}

impl Talk for Mix {
    type Place = Asking;

    fn ask(&mut self, place: &mut Asking, last: bool) {
        let Workload { keys, key_bytes, gets, sets, .. } = self.workload;
        let unset = self.unset();
        let set = unset.is_some() || self.random((gets + sets).max(1)) < sets;
        let key = unset.unwrap_or_else(|| self.random(keys));
        place.key = key;
        place.heard = 0;
        place.request.clear();
        place.head.clear();
        // A Vec takes what is written.
        if set {
            place.expected = Expected::Stored;
            let value = self.value(key);
            let _ = write!(place.request, "set {key:0key_bytes$} 0 0 {}\r\n", value.len());
            place.request.extend_from_slice(value);
            place.request.extend_from_slice(b"\r\n");
        } else {
            place.expected = Expected::Value;
            let _ = write!(place.request, "get {key:0key_bytes$}\r\n");
            let _ = write!(place.head, "VALUE {key:0key_bytes$} 0 {}\r\n", self.workload.value_bytes);
        }
        if last {
            place.request.extend_from_slice(b"quit\r\n");
        }
    }

    fn request<'a>(&'a self, place: &'a Asking) -> &'a [u8] {
        &place.request
    }

    fn hear(&self, place: &mut Asking, data: &[u8]) -> Result<usize, Cause> {
        if place.heard == 0 && place.expected == Expected::Value && data.first() == Some(&b'E') {
            place.expected = Expected::Nothing;
        }
        let mut rest = data;
        let mut at = place.heard;
        for part in place.answer(self) {
            let Some(awaited) = part.get(at..) else {
                at -= part.len();
                continue;
            };
            let n = awaited.len().min(rest.len());
            if awaited[..n] != rest[..n] {
                return Err(Cause::Answer);
            }
            rest = &rest[n..];
            at = 0;
        }
        let used = data.len() - rest.len();
        place.heard += used;
        Ok(used)
    }

    fn is_complete(&self, place: &Asking) -> bool {
        place.heard == place.answer(self).iter().map(|part| part.len()).sum::<usize>()
    }

    fn ended(&self, _: &mut Asking) -> Result<(), Cause> {
        Err(Cause::EarlyClose)
    }

    fn check(&mut self, place: &Asking) -> Result<(), Cause> {
        self.misses += u64::from(place.expected == Expected::Nothing);
        Ok(())
    }

    fn closes(&self, _: &Asking) -> bool {
        false
    }

    fn misses(&mut self) -> u64 {
        std::mem::take(&mut self.misses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix(gets: u32, sets: u32) -> Mix {
        let workload = Workload { keys: 3, key_bytes: 9, value_bytes: 5, gets, sets };
        Mix::new(&workload, Arc::default(), 7)
    }

    fn asked(mix: &mut Mix, last: bool) -> (Asking, String) {
        let mut place = Asking::default();
        mix.ask(&mut place, last);
        let request = String::from_utf8(mix.request(&place).to_vec()).expect("text");
        (place, request)
    }

    #[test]
    fn every_key_is_set_before_others_are_asked_for() {
        let mut m = mix(1, 0);
        for (key, value) in [(0, "!\"#$%"), (1, "\"#$%&"), (2, "#$%&'")] {
            let (mut place, request) = asked(&mut m, key == 2);
            let end = if key == 2 { "quit\r\n" } else { "" };
            assert_eq!(request, format!("set 00000000{key} 0 0 5\r\n{value}\r\n{end}"));
            assert_eq!(m.hear(&mut place, b"STORED\r\n").ok(), Some(8));
            assert!(m.is_complete(&place));
        }
        assert!((0..100).all(|_| asked(&mut m, false).1.starts_with("get ")));
        // Another generator of the same server.
        let mut other = Mix::new(&m.workload, m.filled.clone(), 8);
        assert!(asked(&mut other, false).1.starts_with("get "));
    }

    #[test]
    fn gets_and_sets_keep_their_ratio() {
        let mut m = mix(9, 1);
        let sets = (0..10_000).filter(|_| asked(&mut m, false).1.starts_with("set ")).count();
        assert!((800..1200).contains(&sets), "{sets}");
        let mut m = mix(0, 1);
        assert!((0..100).all(|_| asked(&mut m, false).1.starts_with("set ")));
    }

    #[test]
    fn answers_are_compared_byte_by_byte() {
        let mut m = mix(1, 0);
        (0..3).for_each(|_| drop(asked(&mut m, false)));
        let answer = |m: &Mix, place: &Asking| place.answer(m).concat();
        for cut in 1..30 {
            let (mut place, _) = asked(&mut m, false);
            let whole = answer(&m, &place);
            for part in whole.chunks(cut) {
                assert!(!m.is_complete(&place));
                assert_eq!(m.hear(&mut place, part).ok(), Some(part.len()));
            }
            assert!(m.is_complete(&place) && m.check(&place).is_ok());
        }
        let length = "VALUE 000000000 0 5\r\n!!!!!\r\nEND\r\n".len();
        for wrong in 0..length {
            let (mut place, _) = asked(&mut m, false);
            let mut whole = answer(&m, &place);
            whole[wrong] ^= 1;
            assert!(m.hear(&mut place, &whole).is_err(), "{wrong}");
        }
        assert_eq!(m.misses(), 0);
        // What follows is not the answer's.
        let (mut place, _) = asked(&mut m, false);
        let surplus = [&answer(&m, &place)[..], b"x"].concat();
        assert_eq!(m.hear(&mut place, &surplus).ok(), Some(surplus.len() - 1));
        // A miss is an answer.
        let (mut place, _) = asked(&mut m, false);
        assert_eq!(m.hear(&mut place, b"EN").ok(), Some(2));
        assert!(!m.is_complete(&place));
        assert_eq!(m.hear(&mut place, b"D\r\n").ok(), Some(3));
        assert!(m.is_complete(&place) && m.check(&place).is_ok());
        assert_eq!((m.misses(), m.misses()), (1, 0));
        let (mut place, _) = asked(&mut m, false);
        assert!(m.hear(&mut place, b"ERROR\r\n").is_err() && m.ended(&mut place).is_err());
    }
}
