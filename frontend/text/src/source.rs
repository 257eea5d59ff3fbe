//! A chat template's source on its way to the engine: limits that keep the compiler's recursion small, and rewriting.
//!
//! The engine turns a value into text and compares values without a bound in depth or time, and its operators can't be
//! replaced: so operands of `~`, of comparisons and of subscripts get a filter (see bounds.rs) that checks them first.

use crate::failure::{Failure, Kind, Result};

/// Real templates have up to 30 KB.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Operators in one tag and branches of `elif`: the compiler descends once for each.
const MAX_CHAIN: usize = 2000;
/// The parser's own limit is 150.
const MAX_BRACKETS: usize = 200;
/// The filters that operands get, which bounds.rs defines: to text, as it is, and as a list that is no view of others.
pub const TEXT_FILTER: &str = "xjit_text";
pub const CHECK_FILTER: &str = "xjit_check";
pub const OWN_FILTER: &str = "xjit_own";
const TEXT_CLOSE: &str = ")|xjit_text";
const CHECK_CLOSE: &str = ")|xjit_check";
const OWN_CLOSE: &str = ")|xjit_own";

/// `{% generation %}` marks what a trainer counts: it prints nothing. As `{% if true %}` its blank handling stays.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut raw = false;
    while let Some(at) = rest.as_bytes().windows(2).position(|pair| matches!(pair, b"{#" | b"{%")) {
        let (mark, tag) = rest[at..].split_at(2);
        out.push_str(&rest[..at]);
        let find = |names: &[&'static str]| names.iter().find_map(|name| Some((*name, basic_tag(tag, name, true)?)));
        let mut length = 0;
        let mut replaced = None;
        if mark == "{#" {
            if !raw {
                length = tag.find("#}").map_or(tag.len(), |end| end + 2);
            }
        } else if let Some((_, tag_length)) = find(&["raw", "endraw"]).filter(|(name, _)| raw == (*name == "endraw")) {
            raw = !raw;
            length = tag_length;
        } else if let Some((name, tag_length)) = find(&["generation", "endgeneration"]).filter(|_| !raw) {
            length = tag_length;
            replaced = Some(tag[..length].replacen(name, if name == "generation" { "if true" } else { "endif" }, 1));
        }
        out.push_str(mark);
        out.push_str(replaced.as_deref().unwrap_or(&tag[..length]));
        rest = &tag[length..];
    }
    out.push_str(rest);
    out
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Open,
    Close,
    Comma,
    Colon,
    /// Ends an expression: `=`, keywords, the name of a statement.
    Boundary,
    Tilde,
    Sign,
    Operator,
    Compare,
    /// `in` as an operator.
    In,
    Is,
    /// Before a name that is no keyword: `.` and `|`.
    Access,
    Text,
    Number,
    Name,
}

impl Token {
    fn ends_operand(self) -> bool {
        matches!(self, Token::Close | Token::Text | Token::Number | Token::Name)
    }
}

#[derive(Clone, Copy)]
struct Span {
    token: Token,
    start: usize,
    end: usize,
    /// Of a bracket: the index of the other one, or of this one where there is none.
    mate: usize,
}

/// Length of a number; as the engine's lexer has it, for what is not read alike could hide operators.
fn number_length(source: &str, at: usize) -> usize {
    #[derive(Clone, Copy, PartialEq)]
    enum Part {
        Radix,
        Integer,
        Fraction,
        Exponent,
        ExponentSign,
    }
    let after_dot = source[..at].ends_with('.');
    let bytes = &source.as_bytes()[at..];
    let radix = match bytes.get(..2) {
        Some(b"0b" | b"0B") => 2,
        Some(b"0o" | b"0O") => 8,
        Some(b"0x" | b"0X") => 16,
        _ => 10,
    };
    let (skip, mut part) = if radix == 10 { (0, Part::Integer) } else { (2, Part::Radix) };
    let bytes = &bytes[skip..];
    let mut length = bytes.iter().take_while(|c| c.is_ascii_digit()).count();
    for &c in &bytes[length..] {
        part = match (c, part) {
            (b'.', Part::Integer) if after_dot => break,
            (b'.', Part::Integer) => {
                let next = |i: usize| bytes.get(length + i).copied().unwrap_or(0);
                let exponent = matches!(next(1), b'e' | b'E') && matches!(next(2), b'+' | b'-' | b'0'..=b'9');
                if !exponent && (next(1) == b'_' || next(1).is_ascii_alphabetic()) {
                    break;
                }
                Part::Fraction
            }
            (b'e' | b'E', Part::Integer | Part::Fraction) => Part::Exponent,
            (b'+' | b'-' | b'0'..=b'9', Part::Exponent) => Part::ExponentSign,
            (b'0'..=b'9', part) => part,
            (b'a'..=b'f' | b'A'..=b'F', Part::Radix) if radix == 16 => part,
            (b'_', part) => part,
            _ => break,
        };
        length += 1;
    }
    skip + length
}

/// Length with both quotes, or nothing where it doesn't end.
fn text_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    while *bytes.get(at)? != bytes[0] {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    Some(at + 1)
}

/// What `{% raw` and the like are recognised by, as the engine does: the length after `{%`.
fn basic_tag(rest: &str, name: &str, sign: bool) -> Option<usize> {
    let blank = |c: char| c.is_ascii_whitespace();
    let inner = if sign { rest.strip_prefix(['-', '+']).unwrap_or(rest) } else { rest };
    let inner = inner.trim_start_matches(blank).strip_prefix(name)?.trim_start_matches(blank);
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner).strip_prefix("%}")?;
    Some(rest.len() - inner.len())
}

struct Scanner<'a> {
    source: &'a str,
    at: usize,
    /// Open brackets, over all tags: the engine's lexer ends a tag only where it is 0.
    balance: i64,
    elifs: usize,
    /// What goes where, in the order of opening.
    opens: Vec<(usize, &'static str)>,
    closes: Vec<(usize, &'static str)>,
}

/// `None` in the error: the source can't be read; the engine says why.
type Scan<T> = std::result::Result<T, Option<Failure>>;

impl Scanner<'_> {
    fn refuse<T>(&self, at: usize, what: &str) -> Scan<T> {
        let line = self.source[..at].bytes().filter(|&c| c == b'\n').count() + 1;
        Err(Some(Failure { kind: Kind::Template, message: format!("chat template, line {line}: {what}") }))
    }

    fn template(&mut self) -> Scan<()> {
        loop {
            let bytes = &self.source.as_bytes()[self.at..];
            let mark = |pair: &[u8]| pair[0] == b'{' && matches!(pair[1], b'{' | b'%' | b'#');
            let Some(start) = bytes.windows(2).position(mark) else { return Ok(()) };
            let kind = bytes[start + 1];
            self.at += start + 2;
            let unsigned = &self.source[self.at..];
            let rest = unsigned.strip_prefix(['-', '+']).unwrap_or(unsigned);
            self.at += unsigned.len() - rest.len();
            if kind == b'#' {
                self.at += rest.find("#}").ok_or(None)? + 2;
            } else if let Some(length) = (kind == b'%').then(|| basic_tag(rest, "raw", false)).flatten() {
                self.at += length;
                loop {
                    self.at += self.source[self.at..].find("{%").ok_or(None)? + 2;
                    if let Some(length) = basic_tag(&self.source[self.at..], "endraw", true) {
                        self.at += length;
                        break;
                    }
                }
            } else {
                let tokens = self.tag(kind == b'%')?;
                self.expressions(&tokens, 0, tokens.len());
            }
        }
    }

    /// The tokens up to the tag's end, which is passed.
    fn tag(&mut self, statement: bool) -> Scan<Vec<Span>> {
        let begin = self.at;
        let end_mark = if statement { "%}" } else { "}}" };
        let mut tokens: Vec<Span> = vec![];
        let mut open: Vec<usize> = vec![];
        let mut chain = 0;
        let mut is_for = false;
        // The next name is a test's: `is` has come, perhaps with `not`.
        let mut test_name = false;
        let mut not_is_infix = false;
        loop {
            let rest = &self.source[self.at..];
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace());
            let start = self.source.len() - rest.len();
            self.at = start;
            if self.balance == 0 {
                let unsigned = rest.strip_prefix(['-', '+']).unwrap_or(rest);
                if let Some(after) = unsigned.strip_prefix(end_mark) {
                    self.at = self.source.len() - after.len();
                    return Ok(tokens);
                }
            }
            let bytes = rest.as_bytes();
            let previous = tokens.last().map(|t| t.token);
            let (token, length) = match bytes.first().copied().ok_or(None)? {
                b'\'' | b'"' => (Token::Text, text_length(bytes).ok_or(None)?),
                b'0'..=b'9' => (Token::Number, number_length(self.source, start)),
                b'(' | b'[' | b'{' => (Token::Open, 1),
                b')' | b']' | b'}' => (Token::Close, 1),
                b',' => (Token::Comma, 1),
                b':' => (Token::Colon, 1),
                b'~' => (Token::Tilde, 1),
                b'+' | b'-' => (Token::Sign, 1),
                b'.' | b'|' => (Token::Access, 1),
                b'=' | b'!' | b'<' | b'>' if bytes.get(1) == Some(&b'=') => (Token::Compare, 2),
                b'<' | b'>' => (Token::Compare, 1),
                b'=' => (Token::Boundary, 1),
                b'*' | b'/' if bytes.get(1) == Some(&bytes[0]) => (Token::Operator, 2),
                b'*' | b'/' | b'%' => (Token::Operator, 1),
                c if c == b'_' || c.is_ascii_alphabetic() => {
                    let length = bytes.iter().take_while(|c| **c == b'_' || c.is_ascii_alphanumeric()).count();
                    let word = &rest[..length];
                    if statement && tokens.is_empty() {
                        is_for = word == "for";
                        self.elifs += usize::from(word == "elif");
                        (Token::Boundary, length)
                    } else if test_name || previous == Some(Token::Access) {
                        (Token::Name, length)
                    } else {
                        let not_in = word == "in" && not_is_infix;
                        let token =
                            if not_in { Token::In } else { word_token(word, previous, is_for && open.is_empty()) };
                        // The first one is the loop's own.
                        is_for &= !(word == "in" && token == Token::Boundary);
                        (token, length)
                    }
                }
                _ => return Err(None),
            };
            self.at += length;
            not_is_infix =
                token == Token::Boundary && previous.is_some_and(Token::ends_operand) && &rest[..length] == "not";
            test_name = match token {
                Token::Is => true,
                Token::Name => test_name && &rest[..length] == "not",
                _ => false,
            };
            let mut mate = tokens.len();
            match token {
                Token::Open => {
                    self.balance += 1;
                    open.push(tokens.len());
                    chain += usize::from(previous.is_some_and(Token::ends_operand));
                }
                Token::Close => {
                    self.balance -= 1;
                    if let Some(other) = open.pop() {
                        tokens[other].mate = mate;
                        mate = other;
                    }
                }
                Token::Boundary if bytes[0] == b'=' => {}
                Token::Text | Token::Number | Token::Name | Token::Comma | Token::Colon => {}
                _ => chain += 1,
            }
            if open.len() > MAX_BRACKETS {
                return self.refuse(start, "brackets are nested too deep");
            }
            if chain > MAX_CHAIN {
                return self.refuse(begin, &format!("an expression has more than {MAX_CHAIN} operators"));
            }
            if self.elifs > MAX_CHAIN {
                return self.refuse(begin, &format!("there are more than {MAX_CHAIN} elif"));
            }
            if token == Token::In && previous == Some(Token::Boundary) {
                // `not in` is one operator.
                if let Some(not) = tokens.last_mut() {
                    (not.token, not.end) = (Token::In, self.at);
                    continue;
                }
            }
            tokens.push(Span { token, start, end: self.at, mate });
        }
    }

    /// The pieces of `tokens` that `split` holds apart, brackets being passed over.
    fn pieces(tokens: &[Span], from: usize, to: usize, split: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
        let (mut pieces, mut start, mut i) = (vec![], from, from);
        while i < to {
            if split(i) {
                pieces.push((start, i));
                start = i + 1;
            } else if tokens[i].token == Token::Open && tokens[i].mate > i {
                i = tokens[i].mate;
            }
            i += 1;
        }
        pieces.push((start, to));
        pieces
    }

    fn guard(&mut self, tokens: &[Span], (from, to): (usize, usize), close: &'static str) {
        if from < to {
            self.opens.push((tokens[from].start, "("));
            self.closes.push((tokens[to - 1].end, close));
        }
    }

    fn expressions(&mut self, tokens: &[Span], from: usize, to: usize) {
        let ends = |i: usize| matches!(tokens[i].token, Token::Comma | Token::Colon | Token::Boundary);
        for piece in Self::pieces(tokens, from, to, ends) {
            self.comparison(tokens, piece);
        }
    }

    fn comparison(&mut self, tokens: &[Span], (from, to): (usize, usize)) {
        let sides = Self::pieces(tokens, from, to, |i| matches!(tokens[i].token, Token::Compare | Token::In));
        // Comparing with a text or number takes one step, but what is looked for in a text becomes text.
        let simple = match sides.as_slice() {
            [left, right] if tokens[left.1].token == Token::In => {
                self.is_literal(tokens, *left) || Self::is_literal_list(tokens, *right)
            }
            [left, right] => self.is_literal(tokens, *left) || self.is_literal(tokens, *right),
            sides => sides.len() < 2,
        };
        for side in sides {
            if !simple && !self.is_literal(tokens, side) {
                self.guard(tokens, side, CHECK_CLOSE);
            }
            // A sign is an operator where an operand has ended before it.
            let sum = |i: usize| tokens[i].token == Token::Sign && i > side.0 && tokens[i - 1].token.ends_operand();
            let terms = Self::pieces(tokens, side.0, side.1, sum);
            let adds = terms[1..].iter().any(|term| self.source.as_bytes()[tokens[term.0 - 1].start] == b'+');
            for term in terms {
                let operands = Self::pieces(tokens, term.0, term.1, |i| tokens[i].token == Token::Tilde);
                if adds && operands.len() == 1 && !self.is_literal(tokens, term) {
                    self.guard(tokens, term, OWN_CLOSE);
                }
                for operand in &operands {
                    let text = operand.1 - operand.0 == 1 && tokens[operand.0].token == Token::Text;
                    if operands.len() > 1 && !text {
                        self.guard(tokens, *operand, TEXT_CLOSE);
                    }
                    let times = |i: usize| tokens[i].token == Token::Operator && self.operator(&tokens[i]) == "*";
                    let factors = Self::pieces(tokens, operand.0, operand.1, times);
                    for factor in &factors {
                        if factors.len() > 1 && !self.is_literal(tokens, *factor) {
                            self.guard(tokens, *factor, OWN_CLOSE);
                        }
                        self.brackets(tokens, *factor);
                    }
                }
            }
        }
    }

    fn operator(&self, span: &Span) -> &str {
        &self.source[span.start..span.end]
    }

    /// Where the operand begins that the bracket at `open` follows: names, texts, brackets and what `.` joins to them.
    fn operand_start(&self, tokens: &[Span], from: usize, open: usize) -> usize {
        let mut start = open;
        while start > from {
            let before = start - 1;
            start = match tokens[before].token {
                Token::Close if tokens[before].mate < before => tokens[before].mate,
                Token::Name | Token::Number | Token::Text => before,
                Token::Access if tokens[start].token != Token::Open && self.operator(&tokens[before]) == "." => before,
                _ => break,
            };
            // What begins an operand can only have `.` before it.
            if matches!(tokens[start].token, Token::Name | Token::Number | Token::Text)
                && !(start > from && self.operator(&tokens[start - 1]) == ".")
            {
                break;
            }
        }
        start
    }

    fn brackets(&mut self, tokens: &[Span], (from, to): (usize, usize)) {
        let mut i = from;
        while i < to {
            let Span { token, mate, start, .. } = tokens[i];
            if token == Token::Open && mate > i {
                let inner = (i + 1, mate);
                let subscript = i > from && tokens[i - 1].token.ends_operand();
                match self.source.as_bytes()[start] {
                    // Keys are hashed.
                    b'[' if subscript => {
                        let several =
                            |i: usize| matches!(tokens[i].token, Token::Colon | Token::Comma | Token::Boundary);
                        let single = Self::pieces(tokens, inner.0, inner.1, several).len() == 1;
                        if single && !self.is_literal(tokens, inner) {
                            self.guard(tokens, inner, CHECK_CLOSE);
                        }
                        if !single {
                            // A slice is a view; in brackets twice, for more of the operand may come.
                            let begin = tokens[self.operand_start(tokens, from, i)].start;
                            self.opens.push((begin, "(("));
                            self.closes.push((tokens[mate].end, ")|xjit_own)"));
                        }
                    }
                    b'{' => {
                        for entry in Self::pieces(tokens, inner.0, inner.1, |i| tokens[i].token == Token::Comma) {
                            let key = Self::pieces(tokens, entry.0, entry.1, |i| tokens[i].token == Token::Colon)[0];
                            if key.1 < entry.1 && !self.is_literal(tokens, key) {
                                self.guard(tokens, key, CHECK_CLOSE);
                            }
                        }
                    }
                    // `loop.changed` compares its arguments with the last ones.
                    b'(' if i > from && &self.source[tokens[i - 1].start..tokens[i - 1].end] == "changed" => {
                        for argument in Self::pieces(tokens, inner.0, inner.1, |i| tokens[i].token == Token::Comma) {
                            let spread = usize::from(tokens[argument.0].token == Token::Operator);
                            self.guard(tokens, (argument.0 + spread, argument.1), CHECK_CLOSE);
                        }
                    }
                    _ => {}
                }
                self.expressions(tokens, inner.0, inner.1);
                i = mate;
            }
            i += 1;
        }
    }

    fn is_literal(&self, tokens: &[Span], (from, to): (usize, usize)) -> bool {
        to - from == 1
            && match tokens[from].token {
                Token::Text | Token::Number => true,
                Token::Name => {
                    matches!(
                        &self.source[tokens[from].start..tokens[from].end],
                        "true" | "True" | "false" | "False" | "none" | "None"
                    )
                }
                _ => false,
            }
    }

    fn is_literal_list(tokens: &[Span], (from, to): (usize, usize)) -> bool {
        to - from >= 2
            && tokens[from].token == Token::Open
            && tokens[from].mate == to - 1
            && tokens[from + 1..to - 1]
                .iter()
                .all(|t| matches!(t.token, Token::Text | Token::Number | Token::Comma | Token::Colon))
    }
}

/// A word is a keyword by its place: where an operand is due it is a variable, whatever its name, but for `not` where a
/// condition begins.
fn word_token(word: &str, previous: Option<Token>, in_for: bool) -> Token {
    let after_operand = previous.is_some_and(Token::ends_operand);
    match word {
        "not" if matches!(previous, None | Some(Token::Open | Token::Comma | Token::Colon | Token::Boundary)) => {
            Token::Boundary
        }
        "in" if after_operand && in_for => Token::Boundary,
        "in" if after_operand => Token::In,
        "is" if after_operand => Token::Is,
        "and" | "or" | "not" | "if" | "else" | "as" | "import" | "recursive" if after_operand => Token::Boundary,
        _ => Token::Name,
    }
}

/// The source as the engine is to compile it. Line numbers stay. A source that can't be read is returned as it is.
pub fn prepare(source: &str) -> Result<String> {
    if source.len() > MAX_SOURCE_BYTES {
        let message = format!("chat template: it has {} bytes, more than {MAX_SOURCE_BYTES}", source.len());
        return Err(Failure { kind: Kind::Template, message });
    }
    let source = without_generation_marks(source);
    let mut scanner = Scanner { source: &source, at: 0, balance: 0, elifs: 0, opens: vec![], closes: vec![] };
    match scanner.template() {
        Ok(()) => {}
        Err(Some(failure)) => return Err(failure),
        Err(None) => return Ok(source),
    }
    // Where two begin or end in one place, the one within was added later.
    let (mut opens, mut closes) = (scanner.opens, scanner.closes);
    opens.sort_by_key(|open| open.0);
    closes.reverse();
    closes.sort_by_key(|close| close.0);
    let mut out = String::with_capacity(source.len() + 12 * closes.len());
    let (mut opens, mut closes) = (opens.into_iter().peekable(), closes.into_iter().peekable());
    let mut from = 0;
    while let Some(close) = closes.peek().copied() {
        let (at, text) = match opens.peek().copied() {
            Some(open) if open.0 < close.0 => {
                opens.next();
                open
            }
            _ => {
                closes.next();
                close
            }
        };
        out.push_str(&source[from..at]);
        out.push_str(text);
        from = at;
    }
    out.push_str(&source[from..]);
    Ok(out)
}
