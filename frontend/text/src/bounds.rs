//! Bounds on what a template can make the engine do. Fuel counts the engine's steps, but while it turns a value into
//! text, compares or hashes it, it counts none and descends without a limit; and templates can build values that hold
//! themselves, or the same list twice at every one of many levels. So whatever does that has its operands checked first:
//! filters, tests and methods here, operators by source.rs.

use crate::alloc;
use crate::failure::{guard, Failure, Kind, Result};
use crate::python;
use crate::source::{CHECK_FILTER, OWN_FILTER, TEXT_FILTER};
use minijinja::value::{Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{filters, tests, Environment, Error, ErrorKind, State};

/// Deep enough for what source.rs lets through, and to drop the deepest value that the fuel can make. (One that holds
/// itself is never dropped: references are counted.)
const STACK_BYTES: usize = 256 << 20;
/// `map` may apply itself, once for each argument.
const MAX_ARGUMENTS: usize = 16;

/// Runs `f` on a thread with a deep stack. Only the pages that it uses are ever taken.
pub fn on_deep_stack<T: Send>(f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let run = || {
        let before = alloc::held();
        let result = guard(f);
        (result, alloc::held() - before)
    };
    std::thread::scope(|scope| {
        match std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run).map(|thread| thread.join()) {
            Ok(Ok((result, held))) => {
                alloc::adopt(held);
                result
            }
            Ok(Err(_)) => {
                Err(Failure { kind: Kind::Internal, message: "the chat template's thread has failed".into() })
            }
            Err(error) => {
                Err(Failure { kind: Kind::NoThread, message: format!("no thread for the chat template: {error}") })
            }
        }
    })
}

/// Walks `value` as whoever prints or compares it would; `weight` of a part at a depth is fuel.
fn walk(state: &State, value: &Value, depth: usize, weight: fn(usize) -> u64) -> std::result::Result<(), Error> {
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    if depth > python::MAX_DEPTH {
        return python::too_deep();
    }
    for item in value.try_iter()? {
        state.consume_fuel(weight(depth))?;
        walk(state, &item, depth + 1, weight)?;
        if kind == ValueKind::Map {
            walk(state, &value.get_item(&item)?, depth + 1, weight)?;
        }
    }
    Ok(())
}

/// Fails where `value` is nested too deep or larger than the fuel allows.
pub fn check(state: &State, value: &Value) -> std::result::Result<(), Error> {
    walk(state, value, 0, |_| 1)
}

/// `value` as an operand of `~`: text as Python has it.
fn text(state: &State, value: &Value) -> std::result::Result<Value, Error> {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map if value.as_str().is_none() => {
            python::to_str(state, value).map(Value::from)
        }
        _ => check(state, value).map(|()| value.clone()),
    }
}

/// Lists that the engine makes by `+`, `*`, slices and some filters are views of others, which take longer the more of
/// them lie over each other: what holds items itself comes out.
fn own(state: &State, value: &Value) -> std::result::Result<Value, Error> {
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Iterable) || value.downcast_object_ref::<Tuple>().is_some() {
        return Ok(value.clone());
    }
    // Adding long lists may copy them.
    state.consume_fuel(value.len().unwrap_or(0) as u64 / 2)?;
    if value.downcast_object_ref::<Vec<Value>>().is_some() {
        return Ok(value.clone());
    }
    let mut items: Vec<Value> = vec![];
    for item in value.try_iter()? {
        state.consume_fuel(1)?;
        if item.kind() == ValueKind::Invalid {
            return Err(Error::new(ErrorKind::InvalidOperation, "an item of a list cannot be read"));
        }
        items.push(item);
    }
    Ok(match kind {
        ValueKind::Seq => Value::from(items),
        _ => Value::make_object_iterable(items, |items| Box::new(items.iter().cloned())),
    })
}

/// The filter of that name, whose result is a view.
fn owning(env: &mut Environment, name: &'static str, builtin: Value) {
    env.add_filter(name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
        let result = builtin.call(state, &arguments.into_values())?;
        own(state, &result)
    });
}

fn filter(env: &mut Environment, names: &[&'static str], builtin: Value, max_arguments: usize) {
    for name in names {
        let builtin = builtin.clone();
        env.add_filter(*name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
            let arguments = arguments.into_values();
            if arguments.len() > max_arguments {
                return Err(Error::from(ErrorKind::TooManyArguments));
            }
            for argument in &arguments {
                check(state, argument)?;
            }
            builtin.call(state, &arguments)
        });
    }
}

fn test(env: &mut Environment, names: &[&'static str], builtin: Value) {
    for name in names {
        let builtin = builtin.clone();
        env.add_test(*name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
            let arguments = arguments.into_values();
            for argument in &arguments {
                check(state, argument)?;
            }
            builtin.call(state, &arguments).map(|result| result.is_true())
        });
    }
}

/// The filter `replace` with its `count`.
fn replace(state: &mut State, arguments: Rest<ValueOrKwargs>) -> std::result::Result<Value, Error> {
    let mut arguments = arguments.into_values();
    for argument in &arguments {
        check(state, argument)?;
    }
    let count = match arguments.last().filter(|last| last.is_kwargs()).map(|kwargs| kwargs.get_attr("count")) {
        Some(count) => {
            arguments.pop();
            Some(count?)
        }
        None if arguments.len() == 4 => arguments.pop(),
        None => None,
    };
    match (count, arguments.first()) {
        (Some(count), Some(value)) if !count.is_none() && arguments.len() == 3 => {
            let value = text(state, value)?;
            let (from, to) = (text(state, &arguments[1])?, text(state, &arguments[2])?);
            minijinja_contrib::pycompat::unknown_method_callback(state, &value, "replace", &[from, to, count])
        }
        _ => Value::from_function(filters::replace).call(state, &arguments),
    }
}

/// The filter `indent`, whose blanks are paid for before they are made.
fn indent(state: &mut State, arguments: Rest<ValueOrKwargs>) -> std::result::Result<Value, Error> {
    let arguments = arguments.into_values();
    for argument in &arguments {
        check(state, argument)?;
    }
    let width = match arguments.get(1) {
        Some(last) if last.is_kwargs() => last.get_attr("width")?,
        Some(width) => width.clone(),
        None => Value::from(0),
    };
    let text = arguments.first().and_then(|text| text.as_str()).unwrap_or_default();
    let lines = text.bytes().filter(|&c| c == b'\n').count() as u64 + 1;
    state.consume_fuel((width.as_usize().unwrap_or(0) as u64).saturating_mul(lines) / 64)?;
    Value::from_function(filters::indent).call(state, &arguments)
}

fn pprint(state: &State, value: &Value) -> std::result::Result<String, Error> {
    // Each line is indented by four blanks a level.
    walk(state, value, 0, |depth| 1 + depth as u64 / 8)?;
    Ok(filters::pprint(value))
}

/// Python's methods on the engine's values.
pub fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> std::result::Result<Value, Error> {
    for argument in arguments {
        check(state, argument)?;
    }
    if matches!(name, "count" | "index") {
        check(state, value)?;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

/// Takes the place of those of the engine's filters, tests and functions that need a bound.
pub fn install(env: &mut Environment) {
    let any = usize::MAX;
    env.add_filter(TEXT_FILTER, text);
    env.add_filter(CHECK_FILTER, |state: &State, value: &Value| check(state, value).map(|()| value.clone()));
    env.add_filter("pprint", pprint);
    env.add_filter(OWN_FILTER, own);
    env.add_filter("replace", replace);
    env.add_filter("indent", indent);
    owning(env, "zip", Value::from_function(filters::zip));
    owning(env, "chain", Value::from_function(filters::chain));
    owning(env, "reverse", Value::from_function(filters::reverse));
    filter(env, &["join"], Value::from_function(filters::join), any);
    filter(env, &["upper"], Value::from_function(filters::upper), any);
    filter(env, &["lower"], Value::from_function(filters::lower), any);
    filter(env, &["title"], Value::from_function(filters::title), any);
    filter(env, &["capitalize"], Value::from_function(filters::capitalize), any);
    filter(env, &["trim"], Value::from_function(filters::trim), any);
    filter(env, &["split"], Value::from_function(filters::split), any);
    filter(env, &["lines"], Value::from_function(filters::lines), any);
    filter(env, &["format"], Value::from_function(filters::format), any);
    filter(env, &["escape", "e"], Value::from_function(filters::escape), any);
    filter(env, &["safe"], Value::from_function(filters::safe), any);
    filter(env, &["sort"], Value::from_function(filters::sort), any);
    filter(env, &["unique"], Value::from_function(filters::unique), any);
    filter(env, &["min"], Value::from_function(filters::min), any);
    filter(env, &["max"], Value::from_function(filters::max), any);
    filter(env, &["groupby"], Value::from_function(filters::groupby), any);
    filter(env, &["dictsort"], Value::from_function(filters::dictsort), any);
    filter(env, &["attr"], Value::from_function(filters::attr), any);
    filter(env, &["map"], Value::from_function(filters::map), MAX_ARGUMENTS);
    test(env, &["eq", "equalto", "=="], Value::from_function(tests::is_eq));
    test(env, &["ne", "!="], Value::from_function(tests::is_ne));
    test(env, &["lt", "lessthan", "<"], Value::from_function(tests::is_lt));
    test(env, &["le", "<="], Value::from_function(tests::is_le));
    test(env, &["gt", "greaterthan", ">"], Value::from_function(tests::is_gt));
    test(env, &["ge", ">="], Value::from_function(tests::is_ge));
    test(env, &["in"], Value::from_function(tests::is_in));
    test(env, &["startingwith"], Value::from_function(tests::is_startingwith));
    test(env, &["endingwith"], Value::from_function(tests::is_endingwith));
    // It prints all variables.
    env.remove_global("debug");
}
