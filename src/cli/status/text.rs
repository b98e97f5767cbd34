//! Text for people: ages and times, aligned tables, indented fields, nothing that drives a
//! terminal.

pub(super) use crate::presentation::{age_at, one_line, time_and_age};

use crate::model::printable;
use std::{borrow::Cow, fmt::Write};

/// At most `width` characters, the last three dots where something is missing.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(3)).collect();
    format!("{}...", kept.trim_end())
}

/// Columns as wide as their widest cell, each cell on one line, three spaces between, no spaces at
/// the end. Rows may be shorter than others.
pub(in crate::cli) fn table(rows: &[Vec<String>]) -> String {
    Columns::default().lines(rows)
}

/// The columns of a table that is printed in parts: they are as wide as the widest cell so far.
#[derive(Debug, Default)]
pub(super) struct Columns {
    widths: Vec<usize>,
}

impl Columns {
    /// The text of the next rows.
    pub(super) fn lines(&mut self, rows: &[Vec<String>]) -> String {
        let rows: Vec<Vec<Cow<'_, str>>> =
            rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
        for row in &rows {
            for (column, cell) in row.iter().enumerate() {
                let width = cell.chars().count();
                match self.widths.get_mut(column) {
                    Some(widest) => *widest = width.max(*widest),
                    None => self.widths.push(width),
                }
            }
        }
        let mut text = String::new();
        for row in rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&self.widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width + 3 - cell.chars().count()));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Lines of `Name:   value`, indented.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
}

impl Page {
    /// Width of a name with its colon, before its value.
    const NAMES: usize = 16;

    /// A field; values with line breaks go on below, one without a name stands below the last.
    pub(super) fn field(&mut self, indent: usize, name: &str, value: &str) {
        let label = if name.is_empty() { String::new() } else { format!("{name}:") };
        let below = " ".repeat(indent + Self::NAMES);
        let mut lines = value.lines().map(|line| line.replace(char::is_control, " "));
        let first = lines.next().unwrap_or_default();
        let line = format!("{}{label:<width$}{first}", " ".repeat(indent), width = Self::NAMES);
        self.line(line.trim_end());
        for line in lines {
            self.line(format!("{below}{line}").trim_end());
        }
    }

    /// A field, unless it has no value.
    pub(super) fn optional(&mut self, indent: usize, name: &str, value: Option<&str>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.field(indent, name, value);
        }
    }

    pub(super) fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// A block, each line of it indented.
    pub(super) fn block(&mut self, indent: usize, block: &str) {
        for line in block.lines() {
            // Writing to a String can't fail.
            let written = writeln!(self.text, "{:indent$}{line}", "");
            debug_assert!(written.is_ok());
        }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_on_its_line() {
        assert_eq!(one_line("a\r\n\x1b[31mb\t c \n"), "a [31mb c");
        assert_eq!(cut("abcdefgh", 8), "abcdefgh");
        assert_eq!(cut("abcde fghi", 9), "abcde...");
    }

    #[test]
    fn tables_have_no_spaces_at_the_end() {
        let rows = [["A", "LONG", ""], ["übel", "x", "y"]];
        let rows: Vec<Vec<String>> = rows.map(|row| row.map(str::to_owned).to_vec()).to_vec();
        assert_eq!(table(&rows), "A      LONG\nübel   x      y\n");
    }

    #[test]
    fn later_rows_stand_below_the_columns_of_earlier_ones() {
        let row = |cells: [&str; 2]| vec![cells.map(str::to_owned).to_vec()];
        let mut columns = Columns::default();
        assert_eq!(columns.lines(&row(["NAME", "AGE"])), "NAME   AGE\n");
        assert_eq!(columns.lines(&row(["a", "1s"])), "a      1s\n");
        assert_eq!(columns.lines(&row(["longer", "1s"])), "longer   1s\n");
        assert_eq!(columns.lines(&row(["a", "2s"])), "a        2s\n");
    }
}
