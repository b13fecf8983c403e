//! The arguments of a call as numbers and structures.

use crate::ast::{Call, Expr, Field};
use crate::run::Stop;
use crate::symbols;

/// A call's arguments.
pub(crate) struct Args<'a> {
    pub call: &'a Call,
}

/// The number that an expression is.
pub(crate) fn integer(expr: &Expr) -> Result<i64, Stop> {
    match expr {
        Expr::Int(n) => Ok(*n),
        Expr::Word(name) => symbols::number(name).ok_or_else(|| Stop::fail("the name of a number", name.clone())),
        Expr::Or(a, b) => Ok(integer(a)? | integer(b)?),
        Expr::Apply(name, of) if name == "htons" => integer(of),
        _ => Err(Stop::fail("a number", kind(expr))),
    }
}

fn kind(expr: &Expr) -> &'static str {
    match expr {
        Expr::Ellipsis => "`...`",
        Expr::Int(_) | Expr::Word(_) | Expr::Or(..) => "a number",
        Expr::Str(_) => "a string",
        Expr::List(_) => "a list",
        Expr::Tuple(_) | Expr::Struct(_) => "a structure",
        Expr::Apply(..) => "a function",
        Expr::Address(_) => "an address",
    }
}

/// The field of a structure.
pub(crate) fn field<'a>(fields: &'a [Field], name: &str) -> Option<&'a Field> {
    fields.iter().find(|f| f.name == name)
}

/// The field of a structure, as a number.
pub(crate) fn field_int(fields: &[Field], name: &str) -> Result<i64, Stop> {
    let field = field(fields, name).ok_or_else(|| Stop::fail(format!("a field `{name}`"), "none"))?;
    integer(&field.value)
}

impl<'a> Args<'a> {
    pub fn new(call: &'a Call) -> Args<'a> {
        Args { call }
    }

    pub fn count(&self) -> usize {
        self.call.args.len()
    }

    /// So many arguments and no others.
    pub fn exactly(&self, n: usize) -> Result<(), Stop> {
        match self.count() == n {
            true => Ok(()),
            false => Err(Stop::fail(format!("{n} arguments of {}", self.call.name), self.count().to_string())),
        }
    }

    pub fn get(&self, index: usize) -> Result<&'a Expr, Stop> {
        let missing =
            || Stop::fail(format!("an argument {} of {}", index + 1, self.call.name), self.count().to_string());
        self.call.args.get(index).ok_or_else(missing)
    }

    pub fn int(&self, index: usize) -> Result<i64, Stop> {
        integer(self.get(index)?)
    }

    /// `[n]`.
    pub fn bracketed(&self, index: usize) -> Result<i64, Stop> {
        match self.get(index)? {
            Expr::List(list) if list.len() == 1 => integer(&list[0]),
            other => Err(Stop::fail("a number in brackets", kind(other))),
        }
    }

    pub fn list(&self, index: usize) -> Result<&'a [Expr], Stop> {
        match self.get(index)? {
            Expr::List(list) => Ok(list),
            other => Err(Stop::fail("a list", kind(other))),
        }
    }

    pub fn fields(&self, index: usize) -> Result<&'a [Field], Stop> {
        fields(self.get(index)?)
    }
}

/// The fields of a structure.
pub(crate) fn fields(expr: &Expr) -> Result<&[Field], Stop> {
    match expr {
        Expr::Struct(fields) => Ok(fields),
        other => Err(Stop::fail("a structure with named fields", kind(other))),
    }
}

/// The lengths in `[{..., n}, …]`.
pub(crate) fn iovec(expr: &Expr) -> Result<Vec<usize>, Stop> {
    let Expr::List(list) = expr else { return Err(Stop::fail("a list of buffers", kind(expr))) };
    let one = |buffer: &Expr| match buffer {
        Expr::Tuple(pair) if pair.len() == 2 => integer(&pair[1]).map(|n| n.max(0) as usize),
        other => Err(Stop::fail("a buffer `{..., n}`", kind(other))),
    };
    list.iter().map(one).collect()
}
