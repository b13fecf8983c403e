//! `serve` beside nginx, `load` beside curl and wrk: a generated set of requests and answers, what each makes of them, and the differences,
//! all of which `docs/http-differences.md` lists with their reasons.
//!
//! A difference that is not on the list fails, and so does a row that nothing shows any more.

use super::*;
use std::net::Shutdown;

#[path = "differential/answers.rs"]
mod answers;
#[path = "differential/clients.rs"]
mod clients;
#[path = "differential/exchange.rs"]
mod exchange;
#[path = "differential/feature.rs"]
mod feature;
#[path = "differential/list.rs"]
mod list;
#[path = "differential/requests.rs"]
mod requests;
#[path = "differential/servers.rs"]
mod servers;
