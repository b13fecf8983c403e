//! What became of a script.

use serde::Serialize;

use crate::options::IpVersion;

/// What became of one script.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The script.
    pub path: String,
    /// Over what it ran.
    pub over: IpVersion,
    /// How it ended.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// What its commands asked for in vain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
    /// Its packets with their times, in its own numbers, when they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trace: Vec<String>,
    /// What its code printed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub printed: Vec<String>,
}

/// How a script ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
pub enum Verdict {
    /// As it says.
    #[default]
    Pass,
    /// Not as it says.
    Fail {
        /// Of the event.
        line: u32,
        /// What it says.
        expected: String,
        /// What was.
        got: String,
    },
    /// It needs what is not here.
    Unsupported {
        /// Of the event.
        line: u32,
        /// What it needs.
        reason: String,
    },
    /// It is no script.
    Syntax {
        /// From 1.
        line: u32,
        /// From 1.
        column: u32,
        /// What was expected.
        message: String,
    },
    /// It cannot be read.
    Unreadable {
        /// Why.
        message: String,
    },
}

impl Report {
    /// In a line, as compilers write them.
    pub fn line(&self) -> String {
        let Report { path, over, .. } = self;
        match &self.verdict {
            Verdict::Pass => format!("{path}: pass ({over})"),
            Verdict::Fail { line, expected, got } => {
                format!("{path}:{line}: error: expected {expected}, got {got} ({over})")
            }
            Verdict::Unsupported { line, reason } => format!("{path}:{line}: unsupported: {reason} ({over})"),
            Verdict::Unreadable { message } => format!("{path}: error: cannot be read: {message}"),
            Verdict::Syntax { line, column, message } => format!("{path}:{line}:{column}: error: {message} ({over})"),
        }
    }

    /// What a program that ran this script alone returns: 0, 1 for a failure, 2 for what is no script.
    pub fn exit_code(&self) -> u8 {
        match self.verdict {
            Verdict::Pass | Verdict::Unsupported { .. } => 0,
            Verdict::Fail { .. } => 1,
            Verdict::Syntax { .. } | Verdict::Unreadable { .. } => 2,
        }
    }
}
