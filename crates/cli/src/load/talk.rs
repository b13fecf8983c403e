//! What a generator says on a connection, and what it must hear.

use super::cause::Cause;
use crate::http::reader::{Malformed, Reader};
use crate::load::target::Http;

/// A conversation of requests and responses, one after the other on a connection.
pub trait Talk {
    /// Where a connection stands in it; the next connection uses it again.
    type Place: Default;

    /// A connection begins its next request; after the `last` one the server ends it.
    fn ask(&mut self, place: &mut Self::Place, last: bool);
    /// The request.
    fn request<'a>(&'a self, place: &'a Self::Place) -> &'a [u8];
    /// What came of the response; how much of it belongs to it.
    fn hear(&self, place: &mut Self::Place, data: &[u8]) -> Result<usize, Cause>;
    /// Whether the response is complete.
    fn is_complete(&self, place: &Self::Place) -> bool;
    /// The server has ended the connection: the response may end there.
    fn ended(&self, place: &mut Self::Place) -> Result<(), Cause>;
    /// Checks a complete response.
    fn check(&mut self, place: &Self::Place) -> Result<(), Cause>;
    /// Whether the server will end the connection.
    fn closes(&self, place: &Self::Place) -> bool;
    /// Requests for what was not there, since this was asked last.
    fn misses(&mut self) -> u64;
}

/// One resource, again and again.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// A request that keeps the connection.
    keeping: Vec<u8>,
    /// One that asks the server to close it.
    closing: Vec<u8>,
    /// Length that every body must have; none: any.
    length: Option<u64>,
}

impl Fetch {
    /// The resource, whose body has this length; none: any.
    pub fn new(target: &Http, length: Option<u64>) -> Fetch {
        Fetch { keeping: target.request(true), closing: target.request(false), length }
    }
}

/// What was asked last, and how much of the answer is there.
#[derive(Debug, Default)]
pub struct Fetching {
    last: bool,
    reader: Reader,
}

impl Talk for Fetch {
    type Place = Fetching;

    fn ask(&mut self, place: &mut Fetching, last: bool) {
        place.last = last;
        place.reader.next();
    }

    fn request<'a>(&'a self, place: &'a Fetching) -> &'a [u8] {
        if place.last { &self.closing } else { &self.keeping }
    }

    fn hear(&self, place: &mut Fetching, data: &[u8]) -> Result<usize, Cause> {
        place.reader.feed(data, false, &mut |_| {}).map_err(|malformed| match malformed {
            Malformed::Short => Cause::EarlyClose,
            why => Cause::Malformed(why),
        })
    }

    fn is_complete(&self, place: &Fetching) -> bool {
        place.reader.is_done()
    }

    fn ended(&self, place: &mut Fetching) -> Result<(), Cause> {
        place.reader.end().map_err(|_| Cause::EarlyClose)
    }

    fn check(&mut self, place: &Fetching) -> Result<(), Cause> {
        let Reader { status, body, .. } = place.reader;
        if !(200..300).contains(&status) {
            return Err(Cause::Status(status));
        }
        if self.length.is_some_and(|length| length != body) {
            return Err(Cause::Length);
        }
        Ok(())
    }

    fn closes(&self, place: &Fetching) -> bool {
        place.reader.close
    }

    fn misses(&mut self) -> u64 {
        0
    }
}
