//! Script text into tokens with their places.

use std::fmt;

/// Where something stands in a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
}

/// A script that does not parse: what was expected, or why it cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{}: error: {message}", place.line, place.column)]
pub struct SyntaxError {
    /// Of the first text that does not fit.
    pub place: Place,
    /// Without the place.
    pub message: String,
}

/// The smallest piece of a script that means something.
#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    /// A number without a point.
    Int(i64),
    /// A number with a point, as it was written.
    Float(String),
    /// `0x…`.
    Hex(i64),
    /// A name, a keyword, TCP flags.
    Word(String),
    /// In double quotes; the escapes are resolved.
    Str(String),
    /// In back quotes.
    Command(String),
    /// Between `%{` and `}%`.
    Code(String),
    /// `--name`.
    Option(String),
    /// An address as it was written, IPv4 or IPv6.
    Address(String),
    /// `...`.
    Ellipsis,
    /// A line that begins with `#`: what it says and of what.
    Directive(String, String),
    /// Any other character.
    Sign(char),
    /// After the last.
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Token::Int(n) => write!(f, "`{n}`"),
            Token::Float(text) | Token::Word(text) | Token::Address(text) => write!(f, "`{text}`"),
            Token::Hex(n) => write!(f, "`{n:#x}`"),
            Token::Str(text) => write!(f, "{text:?}"),
            Token::Command(_) => f.write_str("a command in back quotes"),
            Token::Code(_) => f.write_str("a code block"),
            Token::Option(name) => write!(f, "`--{name}`"),
            Token::Ellipsis => f.write_str("`...`"),
            Token::Directive(name, _) => write!(f, "`#{name}`"),
            Token::Sign(c) => write!(f, "`{c}`"),
            Token::End => f.write_str("the end of the script"),
        }
    }
}

/// All tokens of a script; the last is [`Token::End`].
pub fn lex(text: &str) -> Result<Vec<(Place, Token)>, SyntaxError> {
    let mut lexer = Lexer { rest: text, place: Place { line: 1, column: 1 }, fresh_line: true };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blanks()?;
        let place = lexer.place;
        let token = lexer.token()?;
        let end = token == Token::End;
        tokens.push((place, token));
        if end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    rest: &'a str,
    place: Place,
    /// Nothing but blanks so far on this line.
    fresh_line: bool,
}

impl<'a> Lexer<'a> {
    /// Takes the first `bytes` of what is left.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        for c in taken.chars() {
            if c == '\n' {
                self.place = Place { line: self.place.line + 1, column: 1 };
                self.fresh_line = true;
            } else {
                self.place.column += 1;
            }
        }
        self.rest = rest;
        taken
    }

    /// Takes what lies between an opening that is `open` bytes long and `close`.
    fn enclosed(&mut self, open: usize, close: &str) -> Result<&'a str, SyntaxError> {
        let Some(at) = self.rest[open..].find(close) else {
            return Err(SyntaxError {
                place: self.place,
                message: format!("expected `{close}` before the end of the script"),
            });
        };
        let whole = self.take(open + at + close.len());
        Ok(&whole[open..open + at])
    }

    /// As [`Lexer::enclosed`] between single quote characters, over which a backslash leads.
    fn quoted(&mut self, quote: char) -> Result<&'a str, SyntaxError> {
        let mut escaped = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if c == quote => {
                    let whole = self.take(at + 1);
                    return Ok(&whole[1..at]);
                }
                _ => {}
            }
        }
        Err(SyntaxError {
            place: self.place,
            message: format!("expected a closing `{quote}` before the end of the script"),
        })
    }

    fn skip_blanks(&mut self) -> Result<(), SyntaxError> {
        loop {
            let blanks = self.rest.len() - self.rest.trim_start().len();
            self.take(blanks);
            if self.rest.starts_with("//") {
                self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                self.enclosed(2, "*/")?;
            } else {
                return Ok(());
            }
        }
    }

    fn token(&mut self) -> Result<Token, SyntaxError> {
        let fresh_line = std::mem::replace(&mut self.fresh_line, false);
        let Some(first) = self.rest.chars().next() else { return Ok(Token::End) };
        if first == '#' && fresh_line {
            let line = self.take(self.rest.find('\n').unwrap_or(self.rest.len()))[1..].trim();
            let (name, of) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            return Ok(Token::Directive(name.into(), of.trim().into()));
        }
        if self.rest.starts_with("%{") {
            return Ok(Token::Code(self.enclosed(2, "}%")?.trim_matches([' ', '\t']).into()));
        }
        if self.rest.starts_with("...") {
            self.take(3);
            return Ok(Token::Ellipsis);
        }
        match first {
            '"' => return self.quoted('"').map(|text| Token::Str(unescape(text))),
            '`' => return self.quoted('`').map(|text| Token::Command(text.into())),
            _ => {}
        }
        if let Some(rest) = self.rest.strip_prefix("--") {
            let name = span(rest, is_word);
            if name > 0 {
                return Ok(Token::Option(self.take(2 + name)[2..].into()));
            }
        }
        let address = address_len(self.rest);
        if address > 0 {
            return Ok(Token::Address(self.take(address).into()));
        }
        let (number, word) = (number_len(self.rest), span(self.rest, is_word));
        if let Some(digits) = self.rest.strip_prefix("0x").filter(|_| word > 2) {
            let hex = span(digits, |c| c.is_ascii_hexdigit());
            if hex + 2 == word {
                let text = self.take(word);
                let value = u64::from_str_radix(&text[2..], 16);
                return Ok(value.map_or_else(|_| Token::Word(text.into()), |n| Token::Hex(n as i64)));
            }
        }
        if word > number {
            return Ok(Token::Word(self.take(word).into()));
        }
        if number > 0 {
            let text = self.take(number);
            if text.contains('.') {
                return Ok(Token::Float(text.into()));
            }
            // Digits that are more than a number, as in a Fast Open cookie.
            let padded = text.len() > 1 && text.starts_with('0');
            let number = if padded { None } else { text.parse().ok() };
            return Ok(number.map_or_else(|| Token::Word(text.into()), Token::Int));
        }
        self.take(first.len_utf8());
        Ok(Token::Sign(first))
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn span(text: &str, wanted: impl Fn(char) -> bool) -> usize {
    text.find(|c| !wanted(c)).unwrap_or(text.len())
}

fn digits(text: &str) -> usize {
    span(text, |c| c.is_ascii_digit())
}

/// Bytes of `-`? digits (`.` digits)? at the start; 0 when there is no number.
fn number_len(text: &str) -> usize {
    let sign = text.starts_with('-') as usize;
    let whole = digits(&text[sign..]);
    let fraction = text[sign + whole..].strip_prefix('.').map_or(0, digits);
    match (whole, fraction) {
        (0, 0) => 0,
        (_, 0) => sign + whole,
        _ => sign + whole + 1 + fraction,
    }
}

/// Bytes of the address at the start; 0 when there is none. Sequence numbers such as `1:1001` are none: an IPv6 address
/// has a `::` or eight groups.
fn address_len(text: &str) -> usize {
    let dotted = span(text, |c| c.is_ascii_digit() || c == '.');
    if text[..dotted].parse::<std::net::Ipv4Addr>().is_ok() {
        return dotted;
    }
    let mut candidate = &text[..span(text, |c| c.is_ascii_hexdigit() || c == ':' || c == '.')];
    if !candidate.contains("::") && candidate.matches(':').count() < 7 {
        return 0;
    }
    while !candidate.is_empty() {
        if candidate.parse::<std::net::Ipv6Addr>().is_ok() {
            return candidate.len();
        }
        candidate = &candidate[..candidate.len() - 1];
    }
    0
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('0') => out.push('\0'),
                Some(other) => out.push(other),
                None => out.push('\\'),
            },
            (c, false) => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens(text: &str) -> Vec<Token> {
        lex(text).unwrap().into_iter().map(|(_, t)| t).collect()
    }

    fn word(w: &str) -> Token {
        Token::Word(w.into())
    }

    #[test]
    fn numbers_words_and_addresses_are_told_apart() {
        let float = |f: &str| Token::Float(f.into());
        assert_eq!(tokens("+.1"), [Token::Sign('+'), float(".1"), Token::End]);
        assert_eq!(tokens("0...0.100"), [Token::Int(0), Token::Ellipsis, float("0.100"), Token::End]);
        assert_eq!(tokens(".2....3"), [float(".2"), Token::Ellipsis, float(".3"), Token::End]);
        assert_eq!(tokens("1:1001(1000)").len(), 7);
        assert_eq!(tokens("fd::1")[0], Token::Address("fd::1".into()));
        assert_eq!(tokens("192.0.2.1")[0], Token::Address("192.0.2.1".into()));
        assert_eq!(tokens("0xfFff -1 3021b9"), [Token::Hex(0xffff), Token::Int(-1), word("3021b9"), Token::End]);
        assert_eq!(tokens("99999999999999999999 007"), [word("99999999999999999999"), word("007"), Token::End]);
        assert_eq!(tokens("SE. -"), [word("SE"), Token::Sign('.'), Token::Sign('-'), Token::End]);
    }

    #[test]
    fn enclosures_comments_and_directives() {
        let text = "// a\n/* b\n */ #ifdef X y\n%{ assert a }% `ls \\`x` \"q\\\"q\" --mtu=1\n  #else\n";
        let got = tokens(text);
        assert_eq!(got[0], Token::Directive("ifdef".into(), "X y".into()));
        assert_eq!(got[1], Token::Code("assert a".into()));
        assert_eq!(got[2], Token::Command("ls \\`x".into()));
        assert_eq!(got[3], Token::Str("q\"q".into()));
        assert_eq!(got[4], Token::Option("mtu".into()));
        assert_eq!(got[7], Token::Directive("else".into(), "".into()));
        let places: Vec<_> = lex("a\n  b").unwrap().iter().map(|(p, _)| (p.line, p.column)).collect();
        assert_eq!(places, [(1, 1), (2, 3), (2, 4)]);
    }

    #[test]
    fn what_is_not_closed_is_said_where_it_opens() {
        for (text, close) in [("\n %{ x", "}%"), ("\n `x", "`"), ("\n \"x", "\""), ("\n /* x", "*/")] {
            let error = lex(text).unwrap_err();
            assert_eq!((error.place.line, error.place.column), (2, 2), "{text}");
            assert!(error.message.contains(close), "{}", error.message);
        }
    }

    proptest! {
        #[test]
        fn any_text(text in "\\PC{0,60}|[-0-9a-fx.:#%{}`\"/* \n]{0,60}") {
            let _ = lex(&text);
        }
    }
}
