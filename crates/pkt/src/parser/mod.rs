//! The grammar of scripts: options, then events, each a time and an action.

mod call;
mod options;
mod packet;

use std::collections::HashMap;

use crate::ast::{Action, Event, Script, Time};
use crate::lexer::{Place, SyntaxError, Token, lex};

/// Names given with `-D`, and what stands for them.
pub type Defines = HashMap<String, String>;

type Parsed<T> = Result<T, SyntaxError>;

/// Parses a script. `defines` come from the command line; the script's own `--define` add to them.
pub fn parse(text: &str, defines: &Defines) -> Parsed<Script> {
    let mut p = Parser { tokens: lex(text)?, at: 0, defines: defines.clone(), conditions: Vec::new() };
    p.settle()?;
    let options = p.options()?;
    let mut script = Script { options, init: p.bare_command(), ..Script::default() };
    loop {
        let place = p.place();
        if let Some(cleanup) = p.bare_command() {
            script.cleanup = Some(cleanup);
            if *p.peek() != Token::End {
                return p.expected("the end of the script after the last command");
            }
        }
        if *p.peek() == Token::End {
            break;
        }
        let time = p.time()?;
        let action = p.action()?;
        let event = Event { line: place.line, time, action };
        if let Some(message) = inconsistent(&event, script.events.last()) {
            return Err(SyntaxError { place, message });
        }
        script.events.push(event);
    }
    if let Some((place, _)) = p.conditions.last() {
        return Err(SyntaxError { place: *place, message: "expected `#endif` before the end of the script".into() });
    }
    if script.events.is_empty() {
        return p.expected("an event");
    }
    Ok(script)
}

/// Why an event may not be where it is.
fn inconsistent(event: &Event, before: Option<&Event>) -> Option<String> {
    let outbound = matches!(&event.action, Action::Packet(p) if p.direction == crate::ast::Direction::Out);
    let (Time::At(start) | Time::Between(start, _)) = event.time else {
        let only_out = matches!(event.time, Time::Any | Time::AfterBetween(..)) && !outbound;
        return only_out.then(|| "expected an outbound packet after `*` or a range of time".into());
    };
    match before.map(|b| b.time) {
        None if start != 0 => Some("expected the first event at time 0".into()),
        _ if matches!(event.time, Time::Between(..)) && !outbound => {
            Some("expected an outbound packet after a range of time".into())
        }
        Some(Time::At(last) | Time::Between(last, _)) if start < last => {
            Some(format!("expected a time not before {:.6}", last as f64 / 1e6))
        }
        _ => None,
    }
}

struct Parser {
    tokens: Vec<(Place, Token)>,
    at: usize,
    defines: Defines,
    /// The open `#if…`: where, and whether its text counts.
    conditions: Vec<(Place, bool)>,
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].1
    }

    /// The token after the next, whatever it means.
    fn second(&self) -> &Token {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].1
    }

    fn place(&self) -> Place {
        self.tokens[self.at].0
    }

    fn next(&mut self) -> Parsed<Token> {
        let token = self.peek().clone();
        if token != Token::End {
            self.at += 1;
            self.settle()?;
        }
        Ok(token)
    }

    fn expected<T>(&self, what: &str) -> Parsed<T> {
        self.wrong(format!("expected {what}, got {}", self.peek()))
    }

    fn wrong<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err(SyntaxError { place: self.place(), message: message.into() })
    }

    /// Obeys directives, skips what they switch off and puts in what names stand for, up to a token that counts.
    fn settle(&mut self) -> Parsed<()> {
        loop {
            let place = self.place();
            match self.peek().clone() {
                Token::Directive(name, of) => {
                    let defined = self.defines.contains_key(&of);
                    match (name.as_str(), self.conditions.last_mut()) {
                        ("ifdef", _) => self.conditions.push((place, defined)),
                        ("ifndef", _) => self.conditions.push((place, !defined)),
                        ("else", Some((_, counts))) => *counts = !*counts,
                        ("endif", Some(_)) => drop(self.conditions.pop()),
                        ("else" | "endif", None) => return self.wrong(format!("expected `#ifdef` before `#{name}`")),
                        _ => return self.expected("`#ifdef`, `#ifndef`, `#else` or `#endif`"),
                    }
                    self.at += 1;
                }
                Token::End => return Ok(()),
                _ if self.conditions.iter().any(|(_, counts)| !counts) => self.at += 1,
                Token::Word(word) => {
                    if let Some(value) = self.defines.get(&word) {
                        self.tokens[self.at].1 = stands_for(value);
                    }
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
    }

    /// Takes the sign if it is next.
    fn sign(&mut self, c: char) -> Parsed<bool> {
        let is = *self.peek() == Token::Sign(c);
        if is {
            self.next()?;
        }
        Ok(is)
    }

    fn must(&mut self, c: char) -> Parsed<()> {
        match self.sign(c)? {
            true => Ok(()),
            false => self.expected(&format!("`{c}`")),
        }
    }

    /// Takes the keyword if it is next.
    fn word(&mut self, word: &str) -> Parsed<bool> {
        let is = matches!(self.peek(), Token::Word(w) if w == word);
        if is {
            self.next()?;
        }
        Ok(is)
    }

    /// A whole number from 0 to `most`.
    fn number(&mut self, what: &str, most: i64) -> Parsed<i64> {
        let (Token::Int(n) | Token::Hex(n)) = *self.peek() else { return self.expected(what) };
        if !(0..=most).contains(&n) {
            return self.wrong(format!("expected {what} from 0 to {most}, got {n}"));
        }
        self.next()?;
        Ok(n)
    }

    fn number_u16(&mut self, what: &str) -> Parsed<u16> {
        Ok(self.number(what, u16::MAX as i64)? as u16)
    }

    fn number_u32(&mut self, what: &str) -> Parsed<u32> {
        Ok(self.number(what, u32::MAX as i64)? as u32)
    }

    /// A command in back quotes where a time could stand.
    fn bare_command(&mut self) -> Option<(u32, String)> {
        let Token::Command(text) = self.peek().clone() else { return None };
        let line = self.place().line;
        self.next().ok()?;
        Some((line, text))
    }

    fn seconds(&mut self) -> Parsed<u64> {
        let text = match self.peek() {
            Token::Int(n) => n.to_string(),
            Token::Float(text) => text.clone(),
            _ => return self.expected("a time in seconds"),
        };
        match micros(&text) {
            Some(us) => {
                self.next()?;
                Ok(us)
            }
            None => self.wrong(format!("expected a time in seconds below 10^9, not negative, got `{text}`")),
        }
    }

    fn time(&mut self) -> Parsed<Time> {
        if self.sign('*')? {
            return Ok(Time::Any);
        }
        let relative = self.sign('+')?;
        if !relative && !matches!(self.peek(), Token::Int(_) | Token::Float(_)) {
            return self.expected("a time, `+` or `*`");
        }
        let start = self.seconds()?;
        if !self.sign('~')? {
            return Ok(if relative { Time::After(start) } else { Time::At(start) });
        }
        if relative {
            self.must('+')?;
        }
        let place = self.place();
        let end = self.seconds()?;
        if end < start {
            return Err(SyntaxError { place, message: "expected the end of the range not before its start".into() });
        }
        Ok(if relative { Time::AfterBetween(start, end) } else { Time::Between(start, end) })
    }

    fn action(&mut self) -> Parsed<Action> {
        match self.peek().clone() {
            Token::Sign('<' | '>') => self.packet().map(Action::Packet),
            Token::Ellipsis | Token::Word(_) => self.call().map(Action::Call),
            Token::Command(text) => self.next().map(|_| Action::Command(text)),
            Token::Code(text) => self.next().map(|_| Action::Code(text)),
            _ => self.expected("a packet, a system call, a command or a code block"),
        }
    }
}

/// Seconds in decimal digits as microseconds, without the detour over binary fractions.
fn micros(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut fraction: String = fraction.chars().take(6).collect();
    while fraction.len() < 6 {
        fraction.push('0');
    }
    // No script is longer than some decades.
    let whole = Some(whole).filter(|s| *s < 1_000_000_000)?;
    Some(whole * 1_000_000 + fraction.parse::<u64>().ok()?)
}

/// The token that a definition's value is.
fn stands_for(value: &str) -> Token {
    let inner = |quote: char| value.strip_prefix(quote).and_then(|v| v.strip_suffix(quote)).map(String::from);
    if let Some(text) = inner('"') {
        return Token::Str(text);
    }
    if let Some(text) = inner('`') {
        return Token::Command(text);
    }
    let hex = value.strip_prefix("0x").map(|digits| i64::from_str_radix(digits, 16));
    match hex.unwrap_or_else(|| value.parse()) {
        Ok(n) => Token::Int(n),
        Err(_) => Token::Word(value.into()),
    }
}

#[cfg(test)]
mod tests;
