//! The page that the table makes: `docs/protocol.md`.

use std::fmt::Write;

use crate::codes::{CloseMode, ConnOption, Failure};
use crate::event::Event;
use crate::field::BYTES;
use crate::job::Job;
use crate::layout::LAYOUT;
use crate::table::Row;

const HEAD: &str = "\
# What the two halves of a lane say to each other

This page is made from the table in `crates/protocol` (`cargo run -p protocol --example page > docs/protocol.md`); a test holds the two together.

The application's half of a lane and the stack speak through two rings, each with one producer and one consumer: jobs go to the stack, events come
back. A message is 64 bytes, which is one cache line.";

fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ").replace("[`", "`").replace("`]", "`")
}

fn messages(page: &mut String, title: &str, about: &str, rows: &[Row]) -> std::fmt::Result {
    writeln!(page, "\n## {title}\n\n{about}")?;
    for row in rows {
        writeln!(page, "\n### {} {}\n\n{}", row.kind, row.name, joined(row.what))?;
        if !row.answers.is_empty() {
            let answers = row.answers.iter().map(|a| format!("`{a}`")).collect::<Vec<_>>().join(" or ");
            writeln!(page, "Answered by {answers}.")?;
        }
        if !row.columns.is_empty() || row.chain.is_some() {
            writeln!(page, "\n| bytes | field | type | |\n|---|---|---|---|")?;
        }
        for column in row.columns {
            let place = |(at, size): (&usize, &usize)| match size {
                1 => format!("{at}"),
                _ => format!("{at}–{}", at + size - 1),
            };
            let places = column.at.iter().zip(column.sizes).map(place).collect::<Vec<_>>().join(", ");
            writeln!(page, "| {places} | `{}` | `{}` | {} |", column.name, column.ty, joined(column.what))?;
        }
        if let Some(chain) = row.chain {
            writeln!(page, "| {BYTES}–{} | `chain` | `Chain` | {chain} |", size_of::<mem::ring::Message>() - 1)?;
        }
    }
    Ok(())
}

fn codes(page: &mut String, title: &str, codes: &[(&str, u8, &[&str])]) -> std::fmt::Result {
    writeln!(page, "\n### {title}\n\n| number | name | |\n|---|---|---|")?;
    codes.iter().try_for_each(|(name, code, what)| writeln!(page, "| {code} | {name} | {} |", joined(what)))
}

fn write(page: &mut String) -> std::fmt::Result {
    writeln!(page, "{HEAD}\n")?;
    writeln!(page, "| bytes | |\n|---|---|")?;
    writeln!(page, "| 0–1 | which kind of message |")?;
    writeln!(page, "| 2–{} | its fields, as below; what no field has is 0 and not looked at |", BYTES - 1)?;
    writeln!(
        page,
        "| {BYTES}–{} | its bytes: a chain of chunks, which change hands with the message; first chunk, last chunk, length in bytes, pool, 4 bytes each |",
        size_of::<mem::ring::Message>() - 1
    )?;
    writeln!(
        page,
        "\nIntegers lie in the machine's byte order. A `ConnId`, `ListenerId` or `Token` is a number of 4 bytes, an `Endpoint` a port of 2 bytes (host \
         byte order) and an address of 16 (IPv4 in mapped form, the high half first), a `bool` a byte that is 0 or not, the enumerations a byte. A \
         message of another kind, with a value that its enumeration has not, or with bytes where its kind carries none, is counted and dropped. \
         The layout has the number `{LAYOUT:016x}`; two halves whose numbers differ do not speak to each other."
    )?;
    messages(page, "Jobs", "From the application to the stack.", Job::TABLE)?;
    messages(
        page,
        "Events",
        "From the stack to the application. For one connection the order is: `Accepted` or `Opened`, `Connected`, any number of `Data`, `Urgent`, \
         `Acked`, `Room` and `Sent`, at most one `Fin`, at most one `Failed`. Nothing follows the processing of its `Close` but `Closed`.",
        Event::TABLE,
    )?;
    writeln!(page, "\n## Enumerations")?;
    codes(page, "`Failure`", Failure::CODES)?;
    codes(page, "`CloseMode`", CloseMode::CODES)?;
    codes(page, "`ConnOption`", ConnOption::CODES)
}

/// The table as a page of documentation, in Markdown.
pub fn page() -> String {
    let mut page = String::new();
    write(&mut page).expect("a String takes all that is written to it");
    page
}
