//! `strftime` in the C locale, for templates that print the date.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

struct Civil {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    /// 0 is Sunday.
    weekday: i64,
    /// 0 is the first of January.
    yearday: i64,
}

fn is_leap(year: i64) -> bool {
    year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0)
}

impl Civil {
    /// Days to year, month and day: Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
    fn from_seconds(seconds: i64) -> Civil {
        let (days, rest) = (seconds.div_euclid(86400), seconds.rem_euclid(86400));
        let z = days + 719468;
        let era = z.div_euclid(146097);
        let day_of_era = z.rem_euclid(146097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let mp = (5 * day_of_year + 2) / 153;
        let month = if mp < 10 { mp + 3 } else { mp - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let day = day_of_year - (153 * mp + 2) / 5 + 1;
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][(month - 1) as usize];
        Civil {
            year,
            month,
            day,
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
            weekday: (days + 4).rem_euclid(7),
            yearday: before + day - 1 + i64::from(month > 2 && is_leap(year)),
        }
    }

    /// Year and week of ISO 8601.
    fn iso_week(&self) -> (i64, i64) {
        let monday_based = (self.weekday + 6) % 7;
        let week = (self.yearday - monday_based + 10) / 7;
        let weeks_in = |year: i64| {
            // A year has 53 weeks if it begins on a Thursday, or on a Wednesday and is leap.
            let first = (self.weekday - self.yearday + (year - self.year) * 365 + leaps(self.year, year)).rem_euclid(7);
            if first == 4 || (first == 3 && is_leap(year)) {
                53
            } else {
                52
            }
        };
        if week < 1 {
            (self.year - 1, weeks_in(self.year - 1))
        } else if week > weeks_in(self.year) {
            (self.year + 1, 1)
        } else {
            (self.year, week)
        }
    }
}

/// Leap days between the first of January of `from` and that of `to`, which is `from` or the year before.
fn leaps(from: i64, to: i64) -> i64 {
    if to < from {
        -i64::from(is_leap(to))
    } else {
        0
    }
}

/// Formats the wall-clock time `seconds` (since 1970-01-01 00:00 of the same clock). A conversion that is not known is
/// left as it is, as glibc does.
pub fn strftime(format: &str, seconds: i64) -> String {
    let t = Civil::from_seconds(seconds);
    let mut out = String::with_capacity(format.len() + 16);
    write(&mut out, format, &t, seconds);
    out
}

fn write(out: &mut String, format: &str, t: &Civil, seconds: i64) {
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let rest = chars.as_str();
        let mut flag = None;
        let mut conversion = chars.next();
        if let Some(f @ ('-' | '_' | '0' | '^')) = conversion {
            flag = Some(f);
            conversion = chars.next();
        }
        let hour12 = if t.hour % 12 == 0 { 12 } else { t.hour % 12 };
        let mut number = |value: i64, width: usize, pad: char| {
            let digits = value.to_string();
            let pad = match flag {
                Some('-') => None,
                Some('_') => Some(' '),
                Some('0') => Some('0'),
                _ => Some(pad),
            };
            if let Some(pad) = pad {
                out.extend(std::iter::repeat_n(pad, width.saturating_sub(digits.len())));
            }
            out.push_str(&digits);
        };
        match conversion {
            Some('Y') => number(t.year, 1, '0'),
            Some('C') => number(t.year.div_euclid(100), 2, '0'),
            Some('y') => number(t.year.rem_euclid(100), 2, '0'),
            Some('G') => number(t.iso_week().0, 1, '0'),
            Some('g') => number(t.iso_week().0.rem_euclid(100), 2, '0'),
            Some('V') => number(t.iso_week().1, 2, '0'),
            Some('U') => number((t.yearday + 7 - t.weekday) / 7, 2, '0'),
            Some('W') => number((t.yearday + 7 - (t.weekday + 6) % 7) / 7, 2, '0'),
            Some('m') => number(t.month, 2, '0'),
            Some('d') => number(t.day, 2, '0'),
            Some('e') => number(t.day, 2, ' '),
            Some('j') => number(t.yearday + 1, 3, '0'),
            Some('H') => number(t.hour, 2, '0'),
            Some('k') => number(t.hour, 2, ' '),
            Some('I') => number(hour12, 2, '0'),
            Some('l') => number(hour12, 2, ' '),
            Some('M') => number(t.minute, 2, '0'),
            Some('S') => number(t.second, 2, '0'),
            Some('f') => number(0, 6, '0'),
            Some('s') => number(seconds, 1, '0'),
            Some('u') => number(if t.weekday == 0 { 7 } else { t.weekday }, 1, '0'),
            Some('w') => number(t.weekday, 1, '0'),
            Some(name @ ('a' | 'A' | 'b' | 'h' | 'B' | 'p' | 'P')) => {
                let text = match name {
                    'A' => DAYS[t.weekday as usize],
                    'a' => &DAYS[t.weekday as usize][..3],
                    'B' => MONTHS[(t.month - 1) as usize],
                    'p' => {
                        if t.hour < 12 {
                            "AM"
                        } else {
                            "PM"
                        }
                    }
                    'P' => {
                        if t.hour < 12 {
                            "am"
                        } else {
                            "pm"
                        }
                    }
                    _ => &MONTHS[(t.month - 1) as usize][..3],
                };
                if flag == Some('^') {
                    out.push_str(&text.to_uppercase())
                } else {
                    out.push_str(text)
                }
            }
            Some('D' | 'x') => write(out, "%m/%d/%y", t, seconds),
            Some('F') => write(out, "%Y-%m-%d", t, seconds),
            Some('T' | 'X') => write(out, "%H:%M:%S", t, seconds),
            Some('R') => write(out, "%H:%M", t, seconds),
            Some('r') => write(out, "%I:%M:%S %p", t, seconds),
            Some('c') => write(out, "%a %b %e %H:%M:%S %Y", t, seconds),
            // The time has no zone, as Python's naive datetime: these are empty.
            Some('z' | 'Z') => {}
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('%') => out.push('%'),
            _ => {
                out.push('%');
                chars = rest.chars();
            }
        }
    }
}
