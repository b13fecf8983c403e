//! `--name` and `--name=value` at the start of a script.

use super::{Parsed, Parser};
use crate::lexer::Token;

impl Parser {
    pub(super) fn options(&mut self) -> Parsed<Vec<(u32, String, Option<String>)>> {
        let mut options = Vec::new();
        while let Token::Option(name) = self.peek().clone() {
            let line = self.place().line;
            self.next()?;
            let value = if self.sign('=')? { Some(self.option_value()?) } else { None };
            if let ("define", Some(value)) = (name.as_str(), &value) {
                let (symbol, meaning) = value.split_once('=').unwrap_or((value, "1"));
                self.defines.insert(symbol.into(), meaning.into());
                // What comes next may be what it defines.
                self.settle()?;
            }
            options.push((line, name, value));
        }
        Ok(options)
    }

    fn option_value(&mut self) -> Parsed<String> {
        match self.next()? {
            Token::Int(n) => Ok(n.to_string()),
            Token::Float(text) | Token::Str(text) | Token::Address(text) => Ok(text),
            Token::Word(mut name) => {
                // Such as ipv4-mapped-ipv6.
                while self.sign('-')? {
                    match self.next()? {
                        Token::Word(part) => name = format!("{name}-{part}"),
                        _ => return self.expected("a name after `-`"),
                    }
                }
                if !self.sign('=')? {
                    return Ok(name);
                }
                Ok(match self.next()? {
                    Token::Word(value) => format!("{name}={value}"),
                    Token::Int(value) => format!("{name}={value}"),
                    Token::Str(value) => format!("{name}=\"{value}\""),
                    Token::Command(value) => format!("{name}=`{value}`"),
                    _ => return self.expected("what the name stands for"),
                })
            }
            _ => self.expected("the value of the option"),
        }
    }
}
