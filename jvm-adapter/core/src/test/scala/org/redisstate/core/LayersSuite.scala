package org.redisstate.core

import scala.jdk.CollectionConverters._

import com.tngtech.archunit.core.domain.{JavaClass, JavaClasses}
import com.tngtech.archunit.core.importer.{ClassFileImporter, ImportOption}
import com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noClasses
import com.tngtech.archunit.library.Architectures.layeredArchitecture
import com.tngtech.archunit.library.dependencies.{SliceAssignment, SliceIdentifier}
import com.tngtech.archunit.library.dependencies.SlicesRuleDefinition.slices
import org.scalatest.funsuite.AnyFunSuite

/** Imports of the core run one way, and none of them leads to Spark. */
final class LayersSuite extends AnyFunSuite {
  private val root = "org.redisstate.core"

  private lazy val classes: JavaClasses = new ClassFileImporter()
    .withImportOption(new ImportOption.DoNotIncludeTests)
    .withImportOption(new ImportOption.DoNotIncludeJars)
    .importPackages(root)

  /** Each may use those beside it and those of the rows below. */
  private val layers = Seq(
    Seq("store"),
    Seq("store.loading", "store.previews"),
    Seq("store.resources", "protocol.names"),
    Seq("local", "protocol", "copy"),
    Seq("places", "local.blocks", "protocol.manifest"),
    Seq("format", "backend"),
    Seq("errors", "ids", "concurrent")
  )

  test("the packages are those of the layers") {
    val packages = classes.asScala.map(_.getPackageName.stripPrefix(s"$root.")).toSet
    assert(packages == layers.flatten.toSet)
  }

  test("no package uses one of a layer above") {
    val named = layers.flatten.foldLeft(layeredArchitecture().consideringOnlyDependenciesInLayers) {
      (rule, name) => rule.layer(name).definedBy(s"$root.$name")
    }
    val rule = layers.flatten.foldLeft(named) { (rule, name) =>
      layers.takeWhile(!_.contains(name)).flatten match {
        case Seq() => rule.whereLayer(name).mayNotBeAccessedByAnyLayer()
        case above =>
          val beside = layers.find(_.contains(name)).get.filter(_ != name)
          rule.whereLayer(name).mayOnlyBeAccessedByLayers((above ++ beside): _*)
      }
    }
    rule.check(classes)
  }

  test("packages are in no circle") {
    slices().assignedFrom(byPackage).should().beFreeOfCycles().check(classes)
  }

  test("files are in no circle") {
    slices().assignedFrom(byFile).should().beFreeOfCycles().check(classes)
  }

  private val byPackage = slicedBy("packages")(_.getPackageName)

  private val byFile =
    slicedBy("files")(one => one.getPackageName + "/" + one.getSource.get.getFileName.get)

  private def slicedBy(what: String)(name: JavaClass => String): SliceAssignment =
    new SliceAssignment {
      override def getDescription: String = what

      override def getIdentifierOf(used: JavaClass): SliceIdentifier = {
        val one = used.getBaseComponentType
        if (!one.getPackageName.startsWith(root)) SliceIdentifier.ignore()
        else SliceIdentifier.of(name(one))
      }
    }

  test("nothing of the core needs Spark") {
    noClasses().should().dependOnClassesThat().resideInAPackage("org.apache.spark..").check(classes)
  }
}
