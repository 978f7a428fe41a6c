//! What the rounds of a measurement gave, and whether it is what was wanted.

/// What the rounds gave.
#[derive(Default)]
pub struct Results {
    rows: Vec<Row>,
}

struct Row {
    name: String,
    wanted: f64,
    at_least: bool,
    values: Vec<f64>,
}

impl Results {
    /// A value of this round, and what the median of all is to be.
    pub fn add(&mut self, name: &str, value: f64, wanted: f64, at_least: bool) {
        match self.rows.iter_mut().find(|row| row.name == name) {
            Some(row) => row.values.push(value),
            None => {
                let (name, values) = (name.to_owned(), vec![value]);
                self.rows.push(Row { name, wanted, at_least, values });
            }
        }
    }

    pub fn print(&mut self) {
        println!("medians (lowest to highest)");
        for Row { name, wanted, at_least, values } in &mut self.rows {
            values.sort_by(f64::total_cmp);
            let median = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
            let (lowest, highest) = (values[0], values[values.len() - 1]);
            let met = if *at_least { median >= *wanted } else { median <= *wanted };
            let (sign, word) =
                (if *at_least { ">=" } else { "<=" }, if met { "met" } else { "MISSED" });
            println!("{name}: {median:.2} ({lowest:.2} to {highest:.2}), {sign} {wanted} {word}");
        }
    }
}
