//! System calls and their arguments.

use super::{Parsed, Parser};
use crate::ast::{Call, Expr, Field};
use crate::lexer::Token;

/// Deeper nesting than this is no script.
const DEPTH: u32 = 32;

impl Parser {
    pub(super) fn call(&mut self) -> Parsed<Call> {
        let end = match self.peek() {
            Token::Ellipsis => {
                self.next()?;
                Some(self.seconds()?)
            }
            _ => None,
        };
        let Token::Word(name) = self.peek().clone() else { return self.expected("the name of a system call") };
        self.next()?;
        self.must('(')?;
        let args = self.list(')', DEPTH)?;
        self.must('=')?;
        let result = self.expr(DEPTH)?;
        let errno = match self.peek().clone() {
            Token::Word(name) => {
                self.next()?;
                Some(name)
            }
            _ => None,
        };
        self.note()?;
        Ok(Call { end, name, args, result, errno })
    }

    /// `(some words)`, as strace writes behind an error.
    fn note(&mut self) -> Parsed<()> {
        if !self.sign('(')? {
            return Ok(());
        }
        while !self.sign(')')? {
            match self.peek() {
                Token::End => return self.expected("`)`"),
                _ => self.next()?,
            };
        }
        Ok(())
    }

    /// Expressions with commas between, up to and with `close`.
    fn list(&mut self, close: char, depth: u32) -> Parsed<Vec<Expr>> {
        let mut list = Vec::new();
        if self.sign(close)? {
            return Ok(list);
        }
        loop {
            list.push(self.expr(depth)?);
            if self.sign(close)? {
                return Ok(list);
            }
            if !self.sign(',')? {
                return self.expected(&format!("`,` or `{close}`"));
            }
        }
    }

    fn expr(&mut self, depth: u32) -> Parsed<Expr> {
        let mut left = self.simple(depth)?;
        while self.sign('|')? {
            let right = self.simple(depth)?;
            left = Expr::Or(Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn simple(&mut self, depth: u32) -> Parsed<Expr> {
        let Some(depth) = depth.checked_sub(1) else { return self.wrong("expected less nesting") };
        match self.peek().clone() {
            Token::Ellipsis => self.next().map(|_| Expr::Ellipsis),
            Token::Int(n) | Token::Hex(n) => self.next().map(|_| Expr::Int(n)),
            Token::Str(mut text) => {
                self.next()?;
                // Strings in a row are one; `"text"...` says that more follows.
                while let Token::Str(more) = self.peek().clone() {
                    text.push_str(&more);
                    self.next()?;
                }
                if *self.peek() == Token::Ellipsis {
                    self.next()?;
                }
                Ok(Expr::Str(text))
            }
            Token::Address(text) => match text.parse() {
                Ok(address) => self.next().map(|_| Expr::Address(address)),
                Err(_) => self.expected("an address"),
            },
            Token::Word(name) => {
                self.next()?;
                if !self.sign('(')? {
                    return Ok(Expr::Word(name));
                }
                let argument = self.expr(depth)?;
                self.must(')')?;
                Ok(Expr::Apply(name, Box::new(argument)))
            }
            Token::Sign('[') => {
                self.next()?;
                Ok(Expr::List(self.list(']', depth)?))
            }
            Token::Sign('{') => self.braces(depth),
            _ => self.expected("an argument"),
        }
    }

    /// A structure with named fields, or values in braces.
    fn braces(&mut self, depth: u32) -> Parsed<Expr> {
        self.must('{')?;
        let named = matches!((self.peek(), self.second()), (Token::Word(_) | Token::Int(_), Token::Sign('=' | '(')));
        if !named {
            return Ok(Expr::Tuple(self.list('}', depth)?));
        }
        let mut fields = Vec::new();
        loop {
            let name = match self.next()? {
                Token::Word(name) => name,
                Token::Int(n) => n.to_string(),
                _ => return self.expected("the name of a field"),
            };
            let index = match self.sign('(')? {
                true => {
                    let index = self.expr(depth)?;
                    self.must(')')?;
                    Some(index)
                }
                false => None,
            };
            self.must('=')?;
            fields.push(Field { name, index, value: self.expr(depth)? });
            if self.sign('}')? {
                return Ok(Expr::Struct(fields));
            }
            if !self.sign(',')? {
                return self.expected("`,` or `}`");
            }
        }
    }
}
