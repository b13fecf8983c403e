//! The Python that occurs in `%{ … }%`: assertions over `tcp_info`, variables, `if`, `print`.
//!
//! A [`Python`] lives as long as its script, so that a variable set in one block is there in the next.

mod eval;
mod parse;

use std::collections::HashMap;
use std::fmt;

use parse::Statement;

/// What an expression is worth.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An integer; also `True` and `False`.
    Int(i128),
    /// A number with a fraction.
    Float(f64),
    /// Text.
    Str(String),
    /// Several values.
    Tuple(Vec<Value>),
    /// Nothing.
    None,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Value::Int(n) => write!(f, "{n}"),
            Value::Float(x) => write!(f, "{x:?}"),
            Value::Str(s) => f.write_str(s),
            Value::None => f.write_str("None"),
            Value::Tuple(values) => {
                f.write_str("(")?;
                for (i, v) in values.iter().enumerate() {
                    write!(f, "{}{v}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str(")")
            }
        }
    }
}

/// Why a block ended early.
#[derive(Clone, Debug, PartialEq)]
pub enum Trouble {
    /// An assertion does not hold.
    Assertion {
        /// What it says, as it was written.
        condition: String,
        /// Its message, or the values of the names in it.
        got: String,
    },
    /// A name that nothing was ever called.
    Unknown(String),
    /// What is no Python, or more of it than is understood here.
    NotUnderstood(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Trouble::Assertion { condition, got } => write!(f, "expected {condition}, got {got}"),
            Trouble::Unknown(name) => write!(f, "expected a field of tcp_info or a variable, got `{name}`"),
            Trouble::NotUnderstood(what) => f.write_str(what),
        }
    }
}

/// An interpreter with its variables.
#[derive(Default)]
pub struct Python {
    variables: HashMap<String, Value>,
    /// What `print` has said.
    pub printed: Vec<String>,
}

impl Python {
    /// Gives a name a meaning.
    pub fn set(&mut self, name: &str, value: i128) {
        self.variables.insert(name.into(), Value::Int(value));
    }

    /// Runs a block.
    pub fn run(&mut self, text: &str) -> Result<(), Trouble> {
        let block = parse::block(text)?;
        self.statements(&block)
    }

    fn statements(&mut self, block: &[Statement]) -> Result<(), Trouble> {
        for statement in block {
            match statement {
                Statement::Pass => {}
                Statement::Expr(e) => drop(self.value(e)?),
                Statement::Assign(name, e) => {
                    let value = self.value(e)?;
                    self.variables.insert(name.clone(), value);
                }
                Statement::If(condition, then, otherwise) => {
                    let truth = eval::truth(&self.value(condition)?);
                    self.statements(if truth { then } else { otherwise })?;
                }
                Statement::Assert { condition, text, message } => {
                    if !eval::truth(&self.value(condition)?) {
                        let got = match message {
                            Some(message) => self.value(message)?.to_string(),
                            None => self.names_in(condition),
                        };
                        return Err(Trouble::Assertion { condition: text.clone(), got });
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(text: &str) -> Result<Vec<String>, Trouble> {
        let mut python = Python::default();
        python.set("tcpi_snd_cwnd", 10);
        python.set("tcpi_rtt", 10_500);
        python.run(text)?;
        Ok(python.printed)
    }

    #[test]
    fn assertions_hold_or_say_what_is() {
        for good in [
            "assert tcpi_snd_cwnd == 10, tcpi_snd_cwnd",
            "assert 9000 <= tcpi_rtt <= 11000, 'srtt=%d us' % tcpi_rtt",
            "assert (tcpi_rtt & 4) != 0 and not tcpi_snd_cwnd < 0x0a or 1/0",
            "assert True; \\\n  assert 7 // 2 == 3; assert 7 % 4 * 2 ** 3 - 1 == 23  # comment",
            "a = 1\na += 2\nif a == 3:\n  b = 'x'\n  c = 1\nelif a:\n  b = 2\nelse:\n  b = 3\nassert b == 'x' and -c == ~0",
            "assert 3 in (1, 2, 3) and 4 not in [1], 'no'\nassert abs(-3) == max(1, 3) == min(3, 4)",
            "assert (1 if tcpi_rtt > 5 else 2) == 1",
            "assert 1 << 3 | 1 == 9\nassert 1.5 + 1.5 == 3\npass",
        ] {
            assert_eq!(run(good).map(|_| ()), Ok(()), "{good}");
        }
        let said = |text: &str| run(text).unwrap_err().to_string();
        assert_eq!(said("assert tcpi_snd_cwnd == 11, tcpi_snd_cwnd"), "expected tcpi_snd_cwnd == 11, got 10");
        assert_eq!(
            said("assert tcpi_rtt < 5, 'rtt=%d of %s' % (tcpi_rtt, 5)"),
            "expected tcpi_rtt < 5, got rtt=10500 of 5"
        );
        assert_eq!(
            said("assert tcpi_rtt < tcpi_snd_cwnd"),
            "expected tcpi_rtt < tcpi_snd_cwnd, got tcpi_rtt=10500 tcpi_snd_cwnd=10"
        );
        assert!(matches!(run("assert nothing"), Err(Trouble::Unknown(_))));
        for bad in
            ["assert 1/0", "while 1: pass", "f(", "1 +", "a = = 1", "assert 'a' < 1", "import os", "1 << 4000", "if 1:"]
        {
            assert!(matches!(run(bad), Err(Trouble::NotUnderstood(_))), "{bad}");
            for op in ["+", "or", "and"] {
                let long = format!("a = 1{}", format!(" {op} 1").repeat(100_000));
                assert!(matches!(run(&long), Err(Trouble::NotUnderstood(_))), "{op}");
            }
        }
    }

    #[test]
    fn prints() {
        assert_eq!(run("print(tcpi_snd_cwnd, 'x'); print (1)"), Ok(vec!["10 x".into(), "1".into()]));
    }

    proptest! {
        #[test]
        fn any_text(words in proptest::collection::vec(prop::sample::select(vec![
            "assert", "a", "1", "=", "==", "(", ")", ",", "'s'", "%", "+", "-", "if", "else", ":", "\n", "\n  ", ";", "not", "in", "~"
        ]), 0..25)) {
            let _ = run(&words.join(" "));
        }
    }
}
