//! Values as Python prints them and as its `json.dumps` writes them: templates are written for Jinja2 and their models
//! were trained on its output, so the spelling of a float or a list matters.

use minijinja::value::{Kwargs, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Python's `repr(float)`: the shortest digits that give the same number, an exponent outside [1e-4, 1e16).
pub fn float_repr(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = x.to_string();
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

fn as_float(value: &Value) -> Option<f64> {
    if value.kind() == ValueKind::Number && !value.is_integer() {
        f64::try_from(value.clone()).ok()
    } else {
        None
    }
}

/// Python's `repr(str)`.
fn string_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() || (c != ' ' && c.is_whitespace()) => match c as u32 {
                n @ 0..=0xff => out.push_str(&format!("\\x{n:02x}")),
                n => out.push_str(&format!("\\u{n:04x}")),
            },
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Values nested deeper are refused: templates can build lists of any depth, and ones that hold themselves.
pub const MAX_DEPTH: usize = 128;

pub fn too_deep<T>() -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deep to be printed or compared"))
}

/// Python's `str(value)`: text as it is, the rest as `repr` has it.
pub fn to_str(state: &State, value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_string()),
        None => {
            let mut out = String::new();
            repr(state, &mut out, value, 0)?;
            Ok(out)
        }
    }
}

fn repr(state: &State, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    state.consume_fuel(1)?;
    if depth > MAX_DEPTH {
        return too_deep();
    }
    if let Some(text) = value.as_str() {
        state.consume_fuel(text.len() as u64 / 64)?;
        string_repr(out, text);
    } else if let Some(x) = as_float(value) {
        out.push_str(&float_repr(x));
    } else if value.kind() == ValueKind::Seq {
        let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
        out.push(if is_tuple { '(' } else { '[' });
        let mut count = 0;
        for item in value.try_iter()? {
            if count > 0 {
                out.push_str(", ");
            }
            repr(state, out, &item, depth + 1)?;
            count += 1;
        }
        if is_tuple && count == 1 {
            out.push(',');
        }
        out.push(if is_tuple { ')' } else { ']' });
    } else if value.kind() == ValueKind::Map {
        out.push('{');
        for (i, key) in value.try_iter()?.enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            repr(state, out, &key, depth + 1)?;
            out.push_str(": ");
            repr(state, out, &value.get_item(&key)?, depth + 1)?;
        }
        out.push('}');
    } else {
        crate::bounds::check(state, value)?;
        out.push_str(&value.to_string());
    }
    Ok(())
}

struct Dumps {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

fn refuse<T>(what: impl std::fmt::Display) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}")))
}

impl Dumps {
    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
                c if self.ensure_ascii && (c as u32) >= 0x7f => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }

    fn newline(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn scalar(&self, value: &Value) -> Result<String, Error> {
        Ok(match value.kind() {
            ValueKind::None => "null".into(),
            ValueKind::Bool => {
                if value.is_true() {
                    "true".into()
                } else {
                    "false".into()
                }
            }
            ValueKind::Number => match as_float(value) {
                Some(x) if x.is_nan() => "NaN".into(),
                Some(x) if x.is_infinite() => {
                    if x > 0.0 {
                        "Infinity".into()
                    } else {
                        "-Infinity".into()
                    }
                }
                Some(x) => float_repr(x),
                None => value.to_string(),
            },
            ValueKind::Undefined => {
                return Err(Error::new(ErrorKind::UndefinedError, "tojson: the value is undefined"));
            }
            kind => return refuse(format_args!("a {kind} has no JSON form")),
        })
    }

    fn value(&self, state: &State, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        state.consume_fuel(1)?;
        if depth > MAX_DEPTH {
            return too_deep();
        }
        if let Some(text) = value.as_str() {
            self.string(out, text);
            return Ok(());
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                out.push('[');
                let mut any = false;
                for item in value.try_iter()? {
                    if any {
                        out.push_str(&self.item_separator);
                    }
                    any = true;
                    self.newline(out, depth + 1);
                    self.value(state, out, &item, depth + 1)?;
                }
                if any {
                    self.newline(out, depth);
                }
                out.push(']');
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                out.push('{');
                for (i, key) in keys.iter().enumerate() {
                    if i > 0 {
                        out.push_str(&self.item_separator);
                    }
                    self.newline(out, depth + 1);
                    match key.as_str() {
                        Some(text) => self.string(out, text),
                        None => self.string(out, &self.scalar(key)?),
                    }
                    out.push_str(&self.key_separator);
                    self.value(state, out, &value.get_item(key)?, depth + 1)?;
                }
                if !keys.is_empty() {
                    self.newline(out, depth);
                }
                out.push('}');
            }
            _ => out.push_str(&self.scalar(value)?),
        }
        Ok(())
    }
}

/// The filter `tojson` as transformers defines it over `json.dumps`: nothing is escaped for HTML.
pub fn tojson(state: &State, value: &Value, ensure_ascii: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let ensure_ascii = match ensure_ascii {
        Some(given) => Some(given),
        None => kwargs.get::<Option<Value>>("ensure_ascii")?,
    };
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        Some(value) if value.is_none() => None,
        Some(value) => match value.as_str() {
            Some(text) => Some(text.to_string()),
            None => match i64::try_from(value) {
                Ok(n @ ..=64) => Some(" ".repeat(n.max(0) as usize)),
                _ => return refuse("indent must be a text or a number of at most 64"),
            },
        },
        None => None,
    };
    let mut dumps = Dumps {
        item_separator: if indent.is_some() { "," } else { ", " }.into(),
        key_separator: ": ".into(),
        indent,
        sort_keys: kwargs.get::<Option<Value>>("sort_keys")?.is_some_and(|v| v.is_true()),
        ensure_ascii: ensure_ascii.is_some_and(|v| v.is_true()),
    };
    if let Some(pair) = kwargs.get::<Option<Value>>("separators")?.filter(|v| !v.is_none()) {
        let pair: Vec<Value> = pair.try_iter()?.take(3).collect();
        match (pair.len(), pair.first().and_then(|v| v.as_str()), pair.get(1).and_then(|v| v.as_str())) {
            (2, Some(item), Some(key)) => {
                dumps.item_separator = item.into();
                dumps.key_separator = key.into();
            }
            _ => return refuse("separators must be two texts"),
        }
    }
    kwargs.assert_all_used()?;
    let mut out = String::new();
    dumps.value(state, &mut out, value, 0)?;
    Ok(Value::from(out))
}
