//! What expressions are worth.

use super::parse::Expr;
use super::{Python, Trouble, Value};

/// Whether Python takes it for true.
pub fn truth(value: &Value) -> bool {
    match value {
        Value::Int(n) => *n != 0,
        Value::Float(x) => *x != 0.0,
        Value::Str(s) => !s.is_empty(),
        Value::Tuple(v) => !v.is_empty(),
        Value::None => false,
    }
}

fn cannot<T>(what: &str, a: &Value, b: &Value) -> Result<T, Trouble> {
    Err(Trouble::NotUnderstood(format!("cannot do {a} {what} {b}")))
}

fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Int(n) => Some(*n as f64),
        Value::Float(x) => Some(*x),
        Value::Str(_) | Value::Tuple(_) | Value::None => None,
    }
}

impl Python {
    pub(super) fn value(&mut self, expr: &Expr) -> Result<Value, Trouble> {
        match expr {
            Expr::Value(value) => Ok(value.clone()),
            Expr::Name(name) => self.variables.get(name).cloned().ok_or_else(|| Trouble::Unknown(name.clone())),
            Expr::Tuple(values) => values.iter().map(|e| self.value(e)).collect::<Result<_, _>>().map(Value::Tuple),
            Expr::Choice(condition, then, otherwise) => {
                let truth = truth(&self.value(condition)?);
                self.value(if truth { then } else { otherwise })
            }
            Expr::Unary(op, of) => {
                let value = self.value(of)?;
                match (*op, &value) {
                    ("not", v) => Ok(Value::Int(!truth(v) as i128)),
                    ("-", Value::Int(n)) => Ok(Value::Int(n.wrapping_neg())),
                    ("-", Value::Float(x)) => Ok(Value::Float(-x)),
                    ("+", Value::Int(_) | Value::Float(_)) => Ok(value),
                    ("~", Value::Int(n)) => Ok(Value::Int(!n)),
                    _ => Err(Trouble::NotUnderstood(format!("cannot do {op} {value}"))),
                }
            }
            // The second is looked at only where the first leaves it open.
            Expr::Binary("and", a, b) => {
                let a = self.value(a)?;
                if truth(&a) { self.value(b) } else { Ok(a) }
            }
            Expr::Binary("or", a, b) => {
                let a = self.value(a)?;
                if truth(&a) { Ok(a) } else { self.value(b) }
            }
            Expr::Binary(op, a, b) => arithmetic(op, &self.value(a)?, &self.value(b)?),
            Expr::Compare(first, chain) => {
                let mut left = self.value(first)?;
                for (op, right) in chain {
                    let right = self.value(right)?;
                    if !compare(op, &left, &right)? {
                        return Ok(Value::Int(0));
                    }
                    left = right;
                }
                Ok(Value::Int(1))
            }
            Expr::Call(name, arguments) => {
                let values = arguments.iter().map(|e| self.value(e)).collect::<Result<Vec<_>, _>>()?;
                self.call(name, values)
            }
        }
    }

    fn call(&mut self, name: &str, values: Vec<Value>) -> Result<Value, Trouble> {
        match (name, values.as_slice()) {
            ("print", _) => {
                self.printed.push(values.iter().map(Value::to_string).collect::<Vec<_>>().join(" "));
                Ok(Value::None)
            }
            ("str", [v]) => Ok(Value::Str(v.to_string())),
            ("int", [Value::Float(x)]) => Ok(Value::Int(*x as i128)),
            ("int", [Value::Int(n)]) => Ok(Value::Int(*n)),
            ("abs", [Value::Int(n)]) => Ok(Value::Int(n.wrapping_abs())),
            ("abs", [Value::Float(x)]) => Ok(Value::Float(x.abs())),
            ("min" | "max", [first, rest @ ..]) if !rest.is_empty() => {
                let mut best = first.clone();
                for v in rest {
                    if compare(if name == "min" { "<" } else { ">" }, v, &best)? {
                        best = v.clone();
                    }
                }
                Ok(best)
            }
            _ => Err(Trouble::NotUnderstood(format!("cannot call {name} with {} values", values.len()))),
        }
    }

    /// `name=value` of each variable in an expression, for an assertion without a message.
    pub(super) fn names_in(&self, expr: &Expr) -> String {
        let mut names = Vec::new();
        collect(expr, &mut names);
        let known = |name: &&str| self.variables.get(*name).map(|v| format!("{name}={v}"));
        names.iter().filter_map(known).collect::<Vec<_>>().join(" ")
    }
}

fn collect<'a>(expr: &'a Expr, names: &mut Vec<&'a str>) {
    match expr {
        Expr::Value(_) => {}
        Expr::Name(name) => {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        Expr::Unary(_, of) => collect(of, names),
        Expr::Binary(_, a, b) => [a, b].into_iter().for_each(|e| collect(e, names)),
        Expr::Choice(a, b, c) => [a, b, c].into_iter().for_each(|e| collect(e, names)),
        Expr::Compare(first, chain) => {
            collect(first, names);
            chain.iter().for_each(|(_, e)| collect(e, names));
        }
        Expr::Call(_, values) | Expr::Tuple(values) => values.iter().for_each(|e| collect(e, names)),
    }
}

fn compare(op: &str, a: &Value, b: &Value) -> Result<bool, Trouble> {
    match (op, b) {
        ("in", Value::Tuple(values)) => return Ok(values.contains(a)),
        ("not in", Value::Tuple(values)) => return Ok(!values.contains(a)),
        _ => {}
    }
    let order = match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Str(a), Value::Str(b)) => Some(a.cmp(b)),
        _ => float(a).zip(float(b)).and_then(|(a, b)| a.partial_cmp(&b)),
    };
    Ok(match (op, order) {
        ("==", order) => order.map_or(a == b, |o| o.is_eq()),
        ("!=", order) => order.map_or(a != b, |o| o.is_ne()),
        ("<", Some(o)) => o.is_lt(),
        (">", Some(o)) => o.is_gt(),
        ("<=", Some(o)) => o.is_le(),
        (">=", Some(o)) => o.is_ge(),
        _ => return cannot(op, a, b),
    })
}

fn arithmetic(op: &str, a: &Value, b: &Value) -> Result<Value, Trouble> {
    match (a, b) {
        (Value::Str(format), _) if op == "%" => return interpolate(format, b),
        (Value::Str(a), Value::Str(b)) if op == "+" => return Ok(Value::Str(format!("{a}{b}"))),
        (Value::Int(x), Value::Int(y)) if op != "/" => {
            let shift = u32::try_from(*y).ok().filter(|s| *s < 100);
            let result = match op {
                "+" => x.checked_add(*y),
                "-" => x.checked_sub(*y),
                "*" => x.checked_mul(*y),
                "//" => x.checked_div_euclid(*y),
                "%" => x.checked_rem_euclid(*y),
                "&" => Some(x & y),
                "|" => Some(x | y),
                "^" => Some(x ^ y),
                "**" => shift.and_then(|s| x.checked_pow(s)),
                "<<" => shift.and_then(|s| x.checked_mul(1 << s)),
                ">>" => shift.map(|s| x >> s),
                _ => None,
            };
            return result.map_or_else(|| cannot(op, a, b), |n| Ok(Value::Int(n)));
        }
        _ => {}
    }
    let Some((x, y)) = float(a).zip(float(b)) else { return cannot(op, a, b) };
    Ok(Value::Float(match op {
        "+" => x + y,
        "-" => x - y,
        "*" => x * y,
        "/" if y != 0.0 => x / y,
        "**" => x.powf(y),
        _ => return cannot(op, a, b),
    }))
}

/// `'%d' % value`: every directive takes the next value as it prints.
fn interpolate(format: &str, values: &Value) -> Result<Value, Trouble> {
    let mut values = match values {
        Value::Tuple(values) => values.clone(),
        one => vec![one.clone()],
    }
    .into_iter();
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // Flags, width and precision do not matter to a message.
        let directive = chars.find(|c| c.is_ascii_alphabetic() || *c == '%');
        match (directive, &mut values) {
            (Some('%'), _) => out.push('%'),
            (Some('x'), values) => match values.next() {
                Some(Value::Int(n)) => out.push_str(&format!("{n:x}")),
                _ => return Err(Trouble::NotUnderstood(format!("expected an integer for %x in {format:?}"))),
            },
            (Some(_), values) => match values.next() {
                Some(v) => out.push_str(&v.to_string()),
                None => return Err(Trouble::NotUnderstood(format!("expected more values for {format:?}"))),
            },
            (None, _) => return Err(Trouble::NotUnderstood(format!("expected a directive after % in {format:?}"))),
        }
    }
    Ok(Value::Str(out))
}
