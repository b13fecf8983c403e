//! Text of a block into statements.

use super::{Trouble, Value};

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `pass`.
    Pass,
    /// An expression for what it does.
    Expr(Expr),
    /// `name = value`; `name += value` is `name = name + value`.
    Assign(String, Expr),
    /// `if`, with what follows when it holds and when not.
    If(Expr, Vec<Statement>, Vec<Statement>),
    /// `assert condition, message`.
    Assert {
        /// What must hold.
        condition: Expr,
        /// The condition as it was written.
        text: String,
        /// What is said when it does not.
        message: Option<Expr>,
    },
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A literal.
    Value(Value),
    /// A variable.
    Name(String),
    /// `op x`.
    Unary(&'static str, Box<Expr>),
    /// `x op y`.
    Binary(&'static str, Box<Expr>, Box<Expr>),
    /// `x op y op z`: each neighbours' comparison must hold.
    Compare(Box<Expr>, Vec<(&'static str, Expr)>),
    /// `x if c else y`: c, x, y.
    Choice(Box<Expr>, Box<Expr>, Box<Expr>),
    /// `name(x, y)`.
    Call(String, Vec<Expr>),
    /// `(x, y)` or `[x, y]`.
    Tuple(Vec<Expr>),
}

/// Deeper nesting than this is no assertion, nor is a longer chain of operators: each link is a level of the tree.
const DEPTH: u32 = 64;

/// One more operator in a chain.
fn link(left: &mut u32) -> Result<(), Trouble> {
    *left = left.checked_sub(1).ok_or(()).or_else(|()| trouble("expected fewer operators in a row"))?;
    Ok(())
}

const SIGNS: [&str; 35] = [
    "**=", "//=", "<<=", ">>=", "**", "//", "<<", ">>", "<=", ">=", "==", "!=", "+=", "-=", "*=", "/=", "%=", "&=",
    "|=", "^=", "<", ">", "=", "+", "-", "*", "/", "%", "&", "|", "^", "~", "(", ")", ",",
];
const MORE_SIGNS: [&str; 4] = ["[", "]", ":", ";"];

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Value(Value),
    Name(String),
    Sign(&'static str),
    /// The end of a line, and how far the next one is indented.
    Line(usize),
    End,
}

fn trouble<T>(what: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::NotUnderstood(what.into()))
}

/// The tokens of a block, each with where it begins and ends in the text.
fn lex(text: &str) -> Result<Vec<(usize, usize, Token)>, Trouble> {
    let mut tokens = Vec::new();
    let (mut at, mut depth) = (0, 0u32);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let span = |wanted: fn(char) -> bool| rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        let (len, token) = match c {
            '\n' => {
                let next = &rest[1..];
                let indent = next.len() - next.trim_start_matches([' ', '\t']).len();
                // Within parentheses a line goes on.
                (1 + indent, (depth == 0).then_some(Token::Line(indent)))
            }
            '\\' if rest[1..].trim_start_matches([' ', '\t', '\r']).starts_with('\n') => {
                (rest.find('\n').unwrap_or(0) + 1, None)
            }
            _ if c.is_whitespace() => (c.len_utf8(), None),
            '#' => (span(|c| c != '\n'), None),
            '\'' | '"' => {
                let Some(end) = rest[1..].find(c) else { return trouble(format!("expected a closing {c}")) };
                (end + 2, Some(Token::Value(Value::Str(rest[1..1 + end].into()))))
            }
            '0'..='9' | '.' => {
                let len = span(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_');
                (len, Some(Token::Value(number(&rest[..len].replace('_', ""))?)))
            }
            _ if c.is_ascii_alphabetic() || c == '_' => {
                let len = span(|c| c.is_ascii_alphanumeric() || c == '_');
                (len, Some(Token::Name(rest[..len].into())))
            }
            _ => match SIGNS.iter().chain(&MORE_SIGNS).find(|s| rest.starts_with(**s)) {
                Some(sign) => {
                    match *sign {
                        "(" | "[" => depth += 1,
                        ")" | "]" => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    (sign.len(), Some(Token::Sign(sign)))
                }
                None => return trouble(format!("expected Python, got `{c}`")),
            },
        };
        tokens.extend(token.map(|t| (at, at + len, t)));
        at += len;
    }
    tokens.push((at, at, Token::End));
    Ok(tokens)
}

fn number(text: &str) -> Result<Value, Trouble> {
    let int = match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    match (int, text.parse()) {
        (Some(n), _) => Ok(Value::Int(n)),
        (None, Ok(x)) => Ok(Value::Float(x)),
        _ => trouble(format!("expected a number, got `{text}`")),
    }
}

/// Parses a block.
pub fn block(text: &str) -> Result<Vec<Statement>, Trouble> {
    let text = text.trim();
    let mut p = Parser { text, tokens: lex(text)?, at: 0 };
    let statements = p.statements(0, DEPTH)?;
    match p.peek() {
        Token::End => Ok(statements),
        _ => p.expected("a statement"),
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(usize, usize, Token)>,
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].2
    }

    fn expected<T>(&self, what: &str) -> Result<T, Trouble> {
        let (start, end, _) = self.tokens[self.at];
        match &self.text[start..end] {
            "" => trouble(format!("expected {what}, got the end of the block")),
            got => trouble(format!("expected {what}, got {got:?}")),
        }
    }

    fn next(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    fn sign(&mut self, sign: &str) -> bool {
        let is = matches!(self.peek(), Token::Sign(s) if *s == sign);
        if is {
            self.next();
        }
        is
    }

    fn name(&mut self, name: &str) -> bool {
        let is = matches!(self.peek(), Token::Name(n) if n == name);
        if is {
            self.next();
        }
        is
    }

    /// Statements of lines that are indented by at least `indent`.
    fn statements(&mut self, indent: usize, depth: u32) -> Result<Vec<Statement>, Trouble> {
        let mut out = Vec::new();
        loop {
            match self.peek() {
                Token::End => return Ok(out),
                Token::Sign(";") => self.next(),
                Token::Line(next) => {
                    // A blank line says nothing about the indentation.
                    let blank =
                        matches!(self.tokens[(self.at + 1).min(self.tokens.len() - 1)].2, Token::Line(_) | Token::End);
                    if *next < indent && !blank {
                        return Ok(out);
                    }
                    self.next();
                }
                Token::Name(word) if word == "else" || word == "elif" => return Ok(out),
                _ => {
                    out.push(self.statement(indent, depth)?);
                    if !matches!(self.peek(), Token::End | Token::Line(_) | Token::Sign(";")) {
                        return self.expected("the end of the statement");
                    }
                }
            }
        }
    }

    fn statement(&mut self, indent: usize, depth: u32) -> Result<Statement, Trouble> {
        let Some(depth) = depth.checked_sub(1) else { return trouble("expected less nesting") };
        if self.name("pass") {
            return Ok(Statement::Pass);
        }
        if self.name("if") {
            return self.condition(indent, depth);
        }
        if self.name("assert") {
            let start = self.tokens[self.at].0;
            let condition = self.expr(depth)?;
            let text = self.text[start..self.tokens[self.at - 1].1].to_string();
            let message = if self.sign(",") { Some(self.expr(depth)?) } else { None };
            return Ok(Statement::Assert { condition, text, message });
        }
        let expr = self.expr(depth)?;
        let Expr::Name(name) = &expr else { return Ok(Statement::Expr(expr)) };
        let Token::Sign(sign) = *self.peek() else { return Ok(Statement::Expr(expr)) };
        let name = name.clone();
        if sign == "=" {
            self.next();
            return Ok(Statement::Assign(name, self.expr(depth)?));
        }
        let Some(op) = sign.strip_suffix('=').filter(|op| SIGNS.contains(op)) else { return Ok(Statement::Expr(expr)) };
        self.next();
        let change = self.expr(depth)?;
        Ok(Statement::Assign(name, Expr::Binary(op, Box::new(expr), Box::new(change))))
    }

    fn condition(&mut self, indent: usize, depth: u32) -> Result<Statement, Trouble> {
        let Some(depth) = depth.checked_sub(1) else { return trouble("expected less nesting") };
        let condition = self.expr(depth)?;
        let then = self.suite(indent, depth)?;
        let resume = self.at;
        while matches!(self.peek(), Token::Line(_)) {
            self.next();
        }
        let otherwise = if self.name("elif") {
            vec![self.condition(indent, depth)?]
        } else if self.name("else") {
            self.suite(indent, depth)?
        } else {
            self.at = resume;
            Vec::new()
        };
        Ok(Statement::If(condition, then, otherwise))
    }

    /// `:` and statements on the same line, or indented ones on the next.
    fn suite(&mut self, indent: usize, depth: u32) -> Result<Vec<Statement>, Trouble> {
        if !self.sign(":") {
            return self.expected("`:`");
        }
        let suite = match *self.peek() {
            Token::Line(next) if next > indent => {
                self.next();
                self.statements(next, depth)?
            }
            Token::Line(_) => Vec::new(),
            _ => self.statements(usize::MAX, depth)?,
        };
        if suite.is_empty() { self.expected("an indented statement") } else { Ok(suite) }
    }

    fn expr(&mut self, depth: u32) -> Result<Expr, Trouble> {
        let Some(depth) = depth.checked_sub(1) else { return trouble("expected less nesting") };
        let value = self.either(depth)?;
        if !self.name("if") {
            return Ok(value);
        }
        let condition = self.either(depth)?;
        if !self.name("else") {
            return self.expected("`else`");
        }
        let otherwise = self.expr(depth)?;
        Ok(Expr::Choice(Box::new(condition), Box::new(value), Box::new(otherwise)))
    }

    fn either(&mut self, depth: u32) -> Result<Expr, Trouble> {
        let mut left = self.both(depth)?;
        let mut links = depth;
        while self.name("or") {
            link(&mut links)?;
            left = Expr::Binary("or", Box::new(left), Box::new(self.both(depth)?));
        }
        Ok(left)
    }

    fn both(&mut self, depth: u32) -> Result<Expr, Trouble> {
        let mut left = self.negation(depth)?;
        let mut links = depth;
        while self.name("and") {
            link(&mut links)?;
            left = Expr::Binary("and", Box::new(left), Box::new(self.negation(depth)?));
        }
        Ok(left)
    }

    fn negation(&mut self, depth: u32) -> Result<Expr, Trouble> {
        let Some(depth) = depth.checked_sub(1) else { return trouble("expected less nesting") };
        if self.name("not") {
            return Ok(Expr::Unary("not", Box::new(self.negation(depth)?)));
        }
        let first = self.binary(0, depth)?;
        let mut chain = Vec::new();
        loop {
            let op = match self.peek() {
                Token::Sign(s @ ("<" | ">" | "<=" | ">=" | "==" | "!=")) => *s,
                Token::Name(n) if n == "in" => "in",
                Token::Name(n) if n == "not" => {
                    self.next();
                    if !matches!(self.peek(), Token::Name(n) if n == "in") {
                        return self.expected("`in`");
                    }
                    "not in"
                }
                _ => break,
            };
            self.next();
            chain.push((op, self.binary(0, depth)?));
        }
        Ok(if chain.is_empty() { first } else { Expr::Compare(Box::new(first), chain) })
    }

    /// Left-associative operators, the loosest first.
    fn binary(&mut self, level: usize, depth: u32) -> Result<Expr, Trouble> {
        const LEVELS: [&[&str]; 6] = [&["|"], &["^"], &["&"], &["<<", ">>"], &["+", "-"], &["*", "/", "//", "%"]];
        let Some(level_signs) = LEVELS.get(level) else { return self.unary(depth) };
        let mut left = self.binary(level + 1, depth)?;
        let mut links = depth;
        while let Token::Sign(sign) = *self.peek() {
            if !level_signs.contains(&sign) {
                break;
            }
            self.next();
            link(&mut links)?;
            left = Expr::Binary(sign, Box::new(left), Box::new(self.binary(level + 1, depth)?));
        }
        Ok(left)
    }

    fn unary(&mut self, depth: u32) -> Result<Expr, Trouble> {
        let Some(depth) = depth.checked_sub(1) else { return trouble("expected less nesting") };
        for sign in ["-", "+", "~"] {
            if self.sign(sign) {
                return Ok(Expr::Unary(sign, Box::new(self.unary(depth)?)));
            }
        }
        let base = self.atom(depth)?;
        if self.sign("**") {
            return Ok(Expr::Binary("**", Box::new(base), Box::new(self.unary(depth)?)));
        }
        Ok(base)
    }

    fn atom(&mut self, depth: u32) -> Result<Expr, Trouble> {
        match self.peek().clone() {
            Token::Value(value) => {
                self.next();
                Ok(Expr::Value(value))
            }
            Token::Name(name) => {
                if matches!(
                    name.as_str(),
                    "while" | "for" | "def" | "import" | "lambda" | "class" | "in" | "and" | "or"
                ) {
                    return self.expected("an expression");
                }
                self.next();
                Ok(match name.as_str() {
                    "True" => Expr::Value(Value::Int(1)),
                    "False" => Expr::Value(Value::Int(0)),
                    "None" => Expr::Value(Value::None),
                    _ if self.sign("(") => Expr::Call(name, self.values(")", depth)?.0),
                    _ => Expr::Name(name),
                })
            }
            Token::Sign("(") => {
                self.next();
                let (mut values, comma) = self.values(")", depth)?;
                Ok(match values.pop() {
                    Some(only) if values.is_empty() && !comma => only,
                    last => {
                        values.extend(last);
                        Expr::Tuple(values)
                    }
                })
            }
            Token::Sign("[") => {
                self.next();
                Ok(Expr::Tuple(self.values("]", depth)?.0))
            }
            _ => self.expected("an expression"),
        }
    }

    /// Values with commas between, up to and with `close`; whether there was a comma.
    fn values(&mut self, close: &str, depth: u32) -> Result<(Vec<Expr>, bool), Trouble> {
        let (mut values, mut comma) = (Vec::new(), false);
        while !self.sign(close) {
            values.push(self.expr(depth)?);
            if self.sign(",") {
                comma = true;
            } else if !matches!(self.peek(), Token::Sign(s) if *s == close) {
                return self.expected(&format!("`,` or `{close}`"));
            }
        }
        Ok((values, comma))
    }
}
