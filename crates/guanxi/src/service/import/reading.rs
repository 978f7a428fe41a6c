//! What a line asks for. An import into a running service and one beside any service read alike.

use guanxi_api::Object;
use guanxi_api::line::{CsvColumns, LINE_BYTES_MAX, Line};
use guanxi_model::{Catalog, Change, Code, Error, TenantId};

/// None for an empty line, which says nothing. Without columns it is JSON.
pub fn line_change(
    line: &[u8],
    columns: Option<&CsvColumns>,
    tenant: TenantId,
    catalog: &Catalog,
    ignore_limits: bool,
) -> Result<Option<Change>, Error> {
    if line.len() > LINE_BYTES_MAX {
        let message = format!("the line has more than {LINE_BYTES_MAX} bytes");
        return Err(Error::new(Code::TooLarge, message));
    }
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let line = match columns {
        Some(columns) => columns.line(line)?,
        None => json(line)?,
    };
    line.into_change(tenant, catalog, ignore_limits).map(Some)
}

fn json(line: &[u8]) -> Result<Line<'_>, Error> {
    serde_json::from_slice::<Object<Line<'_>>>(line).map(|line| line.0).map_err(|error| {
        // The number of the line in its file is told beside the error.
        Error::invalid(error.to_string().replace(" at line 1 column", " at column"))
    })
}
