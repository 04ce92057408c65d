//! Aligns the cells of a table in columns.

/// Rows under a header. Each column is as wide as its widest cell, and two blanks separate columns.
pub struct Columns<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Columns<N> {
    pub fn new(head: [&str; N]) -> Self {
        Self { rows: vec![head.map(str::to_owned)] }
    }

    pub fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    #[must_use]
    pub fn write(self, none: &str) -> String {
        if self.rows.len() == 1 {
            return format!("{none}\n");
        }
        let wide = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; N] = std::array::from_fn(wide);
        let line = |row: &[String; N]| {
            let cells: Vec<String> =
                row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            format!("{}\n", cells.join("  ").trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

pub fn or_dash(cell: Option<impl ToString>) -> String {
    cell.map_or_else(|| "-".to_owned(), |cell| cell.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let mut columns = Columns::new(["GPU", "NAME"]);
        columns.row(["0".to_owned(), or_dash(None::<&str>)]);
        columns.row(["1000".to_owned(), "python3".to_owned()]);
        assert_eq!(columns.write("none"), "GPU   NAME\n0     -\n1000  python3\n");
        assert_eq!(Columns::new(["GPU"]).write("none"), "none\n");
    }
}
