// Figures with their names and units: a description list whose values change in place.
export default {
  template: `
    <dl class="adb-figures" :aria-label="caption">
      <div v-for="f in shown" :key="f.name" class="adb-figure" :class="f.tone && 'adb-figure-' + f.tone">
        <dt>{{ f.name }}</dt>
        <dd><span class="adb-value">{{ f.value }}</span> <span class="adb-unit">{{ f.unit }}</span></dd>
        <dd v-if="f.note" class="adb-small">{{ f.note }}</dd>
      </div>
    </dl>`,
  props: { caption: String, first: Array },
  data() {
    return { shown: this.first };
  },
  methods: {
    show(figures) {
      this.shown = Object.freeze(figures);
    },
  },
};
