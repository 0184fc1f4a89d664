// The types that a board's JSON must have: Grafana's own, from the package @grafana/schema.
import type { AnnotationQuery, Dashboard, DataQuery, FieldConfig, FieldConfigSource, Panel, RowPanel } from '@grafana/schema';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen.d.ts';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen.d.ts';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen.d.ts';

/** A type as JSON spells it: a word stands for a member of an enum. */
type Plain<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;

/** A type in which these members replace those of the same names. */
type With<T, Members> = Omit<T, keyof Members> & Members;

/** A query of the data source Prometheus, for which @grafana/schema has no type. */
interface Query extends DataQuery {
  expr: string;
  legendFormat?: string;
  instant?: boolean;
  range?: boolean;
  format?: 'time_series' | 'table' | 'heatmap';
  interval?: string;
}

/** An annotation, with the formats that the data source Prometheus adds. */
interface Annotation extends AnnotationQuery<Query> {
  titleFormat?: string;
  textFormat?: string;
}

/** A property of an override: the name of a member, and a value of its type. */
type Named<Prefix extends string, T> = { [K in keyof T & string]-?: { id: `${Prefix}${K}`; value: T[K] } }[keyof T & string];

/** A panel of a type. Grafana fills in the options that the board leaves out. */
type Of<Type extends string, Options, Custom> = With<Panel, {
  type: Type;
  options: Partial<Options>;
  targets: Query[];
  fieldConfig: With<FieldConfigSource, {
    defaults: With<FieldConfig, { custom?: Partial<Custom> }>;
    overrides: {
      matcher: FieldConfigSource['overrides'][number]['matcher'];
      properties: (Named<'', Omit<FieldConfig, 'custom'>> | Named<'custom.', Custom>)[];
    }[];
  }>;
}>;

export type Board = Plain<With<Dashboard, {
  annotations: { list: Annotation[] };
  panels: (
    | RowPanel
    | Of<'stat', stat.Options, Record<string, never>>
    | Of<'table', table.Options, table.FieldConfig>
    | Of<'timeseries', timeseries.Options, timeseries.FieldConfig>
  )[];
}>>;
